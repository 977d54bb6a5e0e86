"""deploy/examples/trainer-to-rollout.yaml as processes: weights_test.py MANIFEST APP BROKER

Goal: both rollouts get every step's weights as a whole. A stopped rollout keeps its weights, and the
trainer waits for it, or learns at its deadline that there is no room. Method: the real broker and
application on the simulated driver; one rollout is stopped and continues later.
"""

import signal
import sys

import programs


def whole(step):
    return rf"weights: step {step}, generation (\d+), \d+ taken, 0 skipped, 0 wrong"


def main():
    with programs.example(*sys.argv[1:]) as start:
        rollouts = [start("rollout-a"), start("rollout-b", "--busy-ms", "10")]
        for rollout in rollouts:
            rollout.expect(whole(0))  # The declared buffer: no trainer has run yet.
        trainer = start("trainer", "--steps", "20", "--every-ms", "0")
        generations = [rollout.expect(whole(20))[1] for rollout in rollouts]
        if generations[0] != generations[1]:
            sys.exit(f"FAILED: the rollouts got step 20 from different generations: {generations}")
        trainer.expect_end(0)

        slow = rollouts[1]
        slow.process.send_signal(signal.SIGSTOP)
        impatient = start("trainer", "--every-ms", "0", "--patience-ms", "200")
        impatient.expect("weights: step 22 waits for room")
        impatient.expect("EXHAUSTED: .*")
        impatient.expect_end(1)
        trainer = start("trainer", "--every-ms", "0")
        trainer.expect("weights: step 22 waits for room")
        slow.process.send_signal(signal.SIGCONT)
        for rollout in rollouts:
            rollout.expect(whole(40))
        for program in (trainer, *rollouts):
            program.stop()
    print("ok")


if __name__ == "__main__":
    main()
