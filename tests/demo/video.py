"""Runs deploy/examples/video.yaml as processes, in their own namespaces if the system allows it, and
measures each frame's latency: from the decoder's end_write until the post-processor's stream has read
the whole frame.

The videos are H.264, decoded by ffmpeg on the CPU, or synthetic if there is no ffmpeg. Prints one line
of JSON. Fails if a frame is wrong or, with --keep-all, missing. Status 77: ffmpeg is missing.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import programs

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ISOLATED = ["unshare", "--pid", "--ipc", "--mount-proc", "--fork", "--kill-child"]


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, type=pathlib.Path,
                        help="folder with bin/, tests/ and driver-sim/")
    parser.add_argument("--manifest", default=ROOT / "deploy/examples/video.yaml")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--frames", type=int, default=600, help="number of frames in each stream")
    parser.add_argument("--per-second", type=int, default=30)
    parser.add_argument("--size", default="1920x1080")
    parser.add_argument("--decoders", type=int, default=None if shutil.which("ffmpeg") else 0,
                        help="number of ffmpeg processes, which the streams share; 0: synthetic frames "
                             "(default: 1 if ffmpeg is installed)")
    parser.add_argument("--keep-all", action="store_true",
                        help="writers wait for readers, so that no frame is lost")
    return parser.parse_args()


def make_clip(path, options):
    subprocess.run(["ffmpeg", "-loglevel", "error", "-f", "lavfi", "-i",
                    f"testsrc2=size={options.size}:rate={options.per_second}", "-t", "2", "-pix_fmt",
                    "yuv420p", "-c:v", "libx264", "-preset", "veryfast", path], check=True)


@contextlib.contextmanager
def decoded(options, decoders):
    """Pipes that deliver decoded frames endlessly."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        clip = f"{folder}/clip.mp4"
        if decoders > 0:
            make_clip(clip, options)
        pipes = []
        for _ in range(decoders):
            decoder = running.enter_context(subprocess.Popen(
                ["ffmpeg", "-loglevel", "quiet", "-nostdin", "-stream_loop", "-1", "-i", clip,
                 "-pix_fmt", "nv12", "-f", "rawvideo", "-"], stdout=subprocess.PIPE))
            running.callback(decoder.kill)
            pipes.append(decoder.stdout.fileno())
        yield pipes


def run(options, decoders, prefix):
    """Returns the report of the post-processor."""
    build = options.build.resolve()
    words = ["--streams", str(options.streams), "--size", options.size, "--once"]
    words += ["--keep-all"] if options.keep_all else []
    with decoded(options, decoders) as pipes, programs.example(
            options.manifest, str(build / "tests/pipeline_app"), str(build / "bin/gpushm-broker"),
            prefix) as start:
        post = start("post-processor", *words, "--json")
        model = start("model", *words)
        raw = [word for pipe in pipes for word in ("--raw", f"/dev/fd/{pipe}")]
        decoder = start("decoder", *words, *raw, "--frames", str(options.frames), "--per-second",
                        str(options.per_second), pass_fds=pipes)
        limit_s = programs.STEP_S + 4 * options.frames / options.per_second
        for program in (decoder, model, post):
            program.expect_end(0, limit_s)
    return json.loads(post.said[-1])


def main():
    options = parse()
    decoders = 1 if options.decoders is None else options.decoders
    if decoders > 0 and not shutil.which("ffmpeg"):
        print("SKIPPED: ffmpeg is missing (apt-get install ffmpeg)")
        sys.exit(SKIPPED)
    simulated = str(options.build.resolve() / "driver-sim")
    if not pathlib.Path("/dev/nvidiactl").exists():
        os.environ.setdefault("GPUSHM_DRIVER", simulated)
    isolated = subprocess.run([*ISOLATED, "true"], stderr=subprocess.DEVNULL).returncode == 0
    found = run(options, decoders, ISOLATED if isolated else [])
    sent = options.streams * options.frames
    print(json.dumps({"simulated_driver": os.environ.get("GPUSHM_DRIVER") == simulated,
                      "own_namespaces": isolated, "decoders": decoders, "size": options.size,
                      "per_second": options.per_second, "sent": sent, **found}))
    if found["wrong"] > 0 or found["frames"] == 0 or (options.keep_all and found["frames"] != sent):
        sys.exit("FAILED: frames are wrong or missing")


if __name__ == "__main__":
    main()
