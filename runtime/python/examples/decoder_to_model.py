"""A decoder hands frames to a model in another container, on the GPU.

    python decoder_to_model.py --decode frames         # in the container that may write the ring
    python decoder_to_model.py --model frames          # in the other one

Instead of decoding a video, the decoder makes frames whose pixels are the frame's number. Instead of looking
for objects, the model measures the brightness, and compares it with that number. With PyTorch and a GPU, frames
never leave the GPU. Without them, for example on the simulated driver, the model copies frames to the host.
"""

import argparse
import sys
import time

import gpushm
import numpy

try:
    import torch
except ImportError:
    torch = None

HEIGHT, WIDTH = 360, 640
BRIGHTEST = 250
WAIT_S = 60  # For the decoder's container to start.


def decode(name, frames_per_s, on_gpu):
    nbytes = 3 * HEIGHT * WIDTH
    with gpushm.ring(name, write=True, nbytes=nbytes) as ring:
        number = 0
        while True:
            number += 1
            frame = numpy.full((HEIGHT, WIDTH, 3), number % BRIGHTEST, dtype=numpy.uint8)
            ring.put(torch.from_numpy(frame).to("cuda") if on_gpu else frame)
            time.sleep(1 / frames_per_s)


def model(name, on_gpu):
    lost = wrong = 0
    for frame in gpushm.ring(name, timeout=WAIT_S):
        pixels = torch.from_dlpack(frame).float() if on_gpu else frame.numpy()
        brightness = pixels.mean().item()
        lost += frame.lost
        wrong += brightness != frame.number % BRIGHTEST
        if frame.number % 10 == 0:
            print(f"model: frame {frame.number}, brightness {brightness:.0f}, {lost} lost, {wrong} wrong", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    role = parser.add_mutually_exclusive_group(required=True)
    role.add_argument("--decode", metavar="RING", help="write frames into this ring")
    role.add_argument("--model", metavar="RING", help="read frames from this ring")
    parser.add_argument("--frames-per-s", type=float, default=25.0, help="of the decoder (default: 25)")
    options = parser.parse_args()
    on_gpu = torch is not None and torch.cuda.is_available()
    if options.decode:
        return decode(options.decode, options.frames_per_s, on_gpu)
    return model(options.model, on_gpu)


if __name__ == "__main__":
    sys.exit(main())
