"""python -m gpushm: lists buffers and tensors, publishes a model, watches for new generations."""

import argparse
import contextlib
import json
import os
import sys

import gpushm
import gpushm.tensors


def size_text(size):
    for unit in ("", "Ki", "Mi"):
        if size < 1024:
            break
        size /= 1024
    else:
        unit = "Gi"
    return f"{size:.4g}{unit}"


def table(rows):
    """Prints rows of texts in columns."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip())


@contextlib.contextmanager
def progress_bar(label):
    """A function for `progress=`: a bar of tqdm on a terminal, if it is installed, or else nothing."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield None
        return
    with tqdm(desc=label, unit="B", unit_scale=True, unit_divisor=1024, leave=False,
              disable=not sys.stderr.isatty()) as bar:
        def show(done, total):
            bar.total = total or None
            bar.update(done - bar.n)

        yield show


def list_buffers(client, options):
    if options.name:
        opened = gpushm.tensors.TensorSet(client, options.name, timeout=0)
        table([("TENSOR", "TYPE", "SHAPE", "OFFSET"),
               *((name, opened.spec(name)[0], str(list(opened.spec(name)[1])), str(opened.offset(name)))
                 for name in opened)])
        return
    table([("NAME", "GENERATION", "SIZE", "STATE", "CREATOR"),
           *((info.name, str(info.generation), size_text(info.nbytes), info.state, info.creator)
             for info in client.list() if info.transport != "host")])


def publish(client, options):
    with progress_bar(options.name) as progress:
        generation = gpushm.tensors.publish(options.name, options.path, client=client, progress=progress,
                                            writers=options.writers, timeout=options.timeout)
    info = client.lookup(options.name)
    print(f"published {options.path} as {options.name}: {size_text(info.nbytes)}, generation {generation}")


def watch(client, options):
    since = 0
    while True:
        info = client.wait(options.name, since, options.timeout)
        since = info.generation
        print(f"{info.name}  generation {info.generation}  {size_text(info.nbytes)}  {info.state}",
              flush=True)


def about(client, options):
    print(json.dumps(gpushm.about(), indent=2))


def parse(words):
    parser = argparse.ArgumentParser(prog="python -m gpushm", description=__doc__)
    parser.add_argument("--folder", help="folder of the broker's socket (default: $GPUSHM_DIR, or "
                        "/run/gpushm)")
    parser.add_argument("--version", action="version", version=gpushm.__version__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def verb(run, name, text):
        added = verbs.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    listing = verb(list_buffers, "list", "list the buffers, or the tensors of one")
    listing.add_argument("name", nargs="?", help="a buffer that holds tensors")
    publishing = verb(publish, "publish", "publish a safetensors file, an index of shards, or a folder")
    publishing.add_argument("path")
    publishing.add_argument("name", help="the buffer; it is made if it does not exist")
    publishing.add_argument("--writers", choices=("creator", "all"), default="creator",
                            help="which containers may write a buffer that is made")
    publishing.add_argument("--timeout", type=float, default=600.0, help="seconds (default: 600)")
    watching = verb(watch, "watch", "print each new generation of a buffer")
    watching.add_argument("name")
    watching.add_argument("--timeout", type=float, help="seconds to wait for each (default: no limit)")
    verb(about, "about", "print what the package uses and sees, as JSON")
    return parser.parse_args(words)


def main(words=None):
    options = parse(words)
    try:
        if options.folder:
            os.environ["GPUSHM_DIR"] = options.folder
        options.run(None if options.run is about else gpushm.client(), options)
    except gpushm.Error as error:
        print(f"gpushm: {error.what or error}", file=sys.stderr)
        if error.remedy:
            print(f"remedy: {error.remedy}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
