"""The three stages of deploy/examples/pipeline.yaml as processes: pipeline_test.py MANIFEST APP BROKER

Goal: frames pass through all stages unchanged. When the middle stage is killed, the last stage reports
it and goes on with its successor. Method: the real broker and application on the simulated driver.
"""

import sys

import programs

GOOD = r"results: \d+ frames, \d+ lost, 0 wrong, at most [\d.]+ ms on their way \(synthetic\)"


def main():
    with programs.example(*sys.argv[1:]) as start:
        post, model, decoder = start("post-processor"), start("model"), start("decoder")
        post.expect(GOOD)
        model.kill()
        post.expect("results: its writer has gone")
        model = start("model")
        post.expect(GOOD)
        for program in (post, model, decoder):
            program.stop()
    print("ok")


if __name__ == "__main__":
    main()
