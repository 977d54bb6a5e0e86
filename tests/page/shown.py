"""What the page must show for a document, computed from the document alone."""

import json
from decimal import ROUND_HALF_UP, Decimal

STATES = {"writer-died": "writer died"}
MIN_SHOWN = 0.004  # Share of a card: smaller buffers of a pod and kind form one part of the bar.


def in_bytes(value):
    if value is None:
        return "unknown"
    unit = 0
    while value >= 999.5 and unit < 5:
        value /= 1024
        unit += 1
    decimals = 0 if value == int(value) else 2 if value < 9.995 else 1 if value < 99.95 else 0
    # Halves are rounded up, as in JavaScript.
    rounded = Decimal(value).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)
    return f"{rounded} {['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'][unit]}"


def pod_name(pool):
    return f"{pool['namespace']}/{pool['pod']}" if pool["pod"] else pool["allocation"]


def kind(buffer):
    users = sum(a["count"] for a in buffer["attachments"])
    return "idle" if users == 0 else "one" if users == 1 else "shared"


def bar(gpu):
    """Bytes of each kind; their sum is the whole card."""
    kinds = dict.fromkeys(["shared", "one", "idle"], 0)
    private = 0
    for pool in gpu["pools"]:
        private += sum(c["private_bytes"] or 0 for c in pool["containers"])
        for buffer in pool["buffers"]:
            kinds[kind(buffer)] += buffer["allocated_bytes"]
    buffers, other = sum(kinds.values()), gpu["other_bytes"] or 0
    left = gpu["total_bytes"] - buffers - other
    granted = min(left, max(0, gpu["bound_bytes"] - buffers - private))
    return {**kinds, "granted": granted, "other": other, "free": left - granted}


def totals(doc):
    gpus, pools = doc["gpus"], [p for g in doc["gpus"] for p in g["pools"]]
    total = {key: in_bytes(sum(g[key] for g in gpus))
             for key in ("saved_bytes", "buffers_bytes", "bound_bytes", "allocatable_bytes")}
    return {"saved": total["saved_bytes"], "In buffers": total["buffers_bytes"],
            "Granted to pods": f"{total['bound_bytes']} of {total['allocatable_bytes']}",
            "GPUs healthy": f"{sum(g['healthy'] for g in gpus)} of {len(gpus)}",
            "Pods": str(len({p["allocation"] for p in pools})), "Buffers": str(sum(len(p["buffers"]) for p in pools))}


def figures(gpu):
    shown = {"Memory": in_bytes(gpu["total_bytes"]), "In use": in_bytes(gpu["used_bytes"]),
             "In buffers": in_bytes(gpu["buffers_bytes"]), "Other": in_bytes(gpu["other_bytes"]),
             "Granted": f"{in_bytes(gpu['bound_bytes'])} of {in_bytes(gpu['allocatable_bytes'])}",
             "Saved by sharing": in_bytes(gpu["saved_bytes"])}
    if gpu["kept_bytes"]:
        shown["Kept for successors"] = in_bytes(gpu["kept_bytes"])
    return shown


def buffer_rows(pool):
    """Cells of each row of the pod's table of buffers, largest buffer first."""
    rows = []
    for b in sorted(pool["buffers"], key=lambda b: -b["allocated_bytes"]):
        state = STATES.get(b["state"], b["state"])
        if b["state"] == "loading" and b["loaded_bytes"] is not None:
            state += f", {in_bytes(b['loaded_bytes'])}"
        first = [b["name"], state, in_bytes(b["allocated_bytes"])]
        holders = [[a["container"], a["access"], f"× {a['count']}", in_bytes(a["mapped_bytes"]),
                    in_bytes(a["proportional_bytes"])] for a in b["attachments"]] or [["nobody"]]
        if b["reason"]:
            holders.append([b["reason"]])
        rows += [first + holders[0], *holders[1:]]
    return rows


def of_gpus(pool, doc):
    if pool["pod_gpus"] < 2:
        return ""
    where = {p["gpu_number"]: f"GPU {g['index']}" for g in doc["gpus"] for p in g["pools"]
             if p["allocation"] == pool["allocation"]}
    names = ", ".join(where.get(n, "another") for n in range(pool["pod_gpus"]))
    text = f"number {pool['gpu_number']} of the pod’s {pool['pod_gpus']} GPUs: {names}"
    if pool["gpu_number"] and 0 in where:
        text += f"; clients are counted on {where[0]}"
    return text


def container_rows(pool):
    return [[c["name"] if c["name"] != "gpushm" else "gpushm (sidecar)",
             "–" if pool["gpu_number"] else str(c["clients"]),
             in_bytes(c["mapped_bytes"]), in_bytes(c["proportional_bytes"]),
             in_bytes(c["private_bytes"]) + (
                 f" of {in_bytes(c['private_limit_bytes'])}" if c.get("private_limit_bytes") else "")]
            for c in pool["containers"]]


def counted(number, one, several=None):
    return f"{number} {one if number == 1 else several or one + 's'}"


def mps_line(mps):
    if not mps:
        return ""
    line = f"MPS serves {counted(mps['clients'], 'process', 'processes')}" if mps["ready"] else "MPS serves nobody"
    restarts = mps["daemon_restarts"] + mps["server_restarts"]
    if restarts:
        line += f", restarted {counted(restarts, 'time')}"
    if mps["outside_processes"]:
        line += f", {counted(mps['outside_processes'], 'process', 'processes')} outside of it"
    return line


def resource_lines(doc):
    return [f"{r['name']}: {'registered' if r['registered'] else 'not registered with the kubelet'}"
            f", {r['bound']} of {r['devices']} bound, {r['unhealthy']} unhealthy"
            for r in doc["resources"]]


# Reads everything shown in one call: one call for each cell would take minutes.
READ = """() => {
  const texts = (nodes) => [...nodes].map((n) => n.textContent);
  const pairs = (list) => Object.fromEntries([...list.children].map((d) => texts(d.children)));
  const rows = (tables) => [...tables].flatMap((t) => [...t.querySelectorAll('tbody tr')])
    .map((row) => texts(row.children));
  return {
    totals: {saved: document.getElementById('saved').textContent,
             ...pairs(document.getElementById('totals'))},
    resources: texts(document.querySelectorAll('#resources li')),
    gpus: [...document.querySelectorAll('.gpu')].map((card) => ({
      name: card.querySelector('h2').textContent,
      healthy: card.querySelector('.head .good') !== null,
      reason: card.querySelector('.reason').hidden ? '' : card.querySelector('.reason').textContent,
      figures: pairs(card.querySelector(':scope > dl')),
      parts: [...card.querySelectorAll('.bar button')].map((b) => (
        {kind: b.className.split(' ')[0], share: Number(b.parentNode.style.flexGrow) / 1000})),
      pools: [...card.querySelectorAll('.pool')].map((pool) => ({
        name: pool.querySelector('h3').textContent,
        gpus: pool.querySelector('.gpus').textContent,
        mps: pool.querySelector('.head').lastChild.textContent,
        buffers: rows(pool.querySelectorAll('table.buffers')),
        containers: rows(pool.querySelectorAll('table.containers'))})),
    })),
  };
}"""


def reason(gpu):
    if gpu["reason"] or not gpu["healthy"]:
        return gpu["reason"]
    if gpu["drained"]:
        return f"Drained: {gpu['drained']}. No new pod is bound here."
    taken = gpu["taken_by"]
    if taken:
        return f"{taken} also hands out this GPU: no new pod is bound here."
    alone = gpu["exclusive_to"]
    return f"Only for pod {alone} (gpushm.io/exclusive)." if alone else ""


def check(case, doc, page):
    """`page` has every list expanded."""
    shown = page.evaluate(READ)
    case.assertEqual(shown["totals"], shown["totals"] | totals(doc))
    case.assertEqual(shown["resources"], resource_lines(doc))
    case.assertEqual(len(shown["gpus"]), len(doc["gpus"]))
    for card, gpu in zip(shown["gpus"], doc["gpus"]):
        case.assertEqual(card["name"], f"GPU {gpu['index']}")
        case.assertEqual(card["healthy"], gpu["healthy"])
        case.assertEqual(card["reason"], reason(gpu))
        case.assertEqual(card["figures"], figures(gpu))
        check_bar(case, card["parts"], gpu)
        case.assertEqual(len(card["pools"]), len(gpu["pools"]))
        for box, pool in zip(card["pools"], gpu["pools"]):
            case.assertEqual(box["name"], pod_name(pool))
            case.assertEqual(box["mps"], mps_line(pool.get("mps")))
            case.assertEqual(box["buffers"], buffer_rows(pool), json.dumps(pool)[:400])
            case.assertEqual(box["containers"], container_rows(pool))
            case.assertEqual(box["gpus"], of_gpus(pool, doc))


def check_bar(case, parts, gpu):
    drawn = dict.fromkeys(["shared", "one", "idle", "granted", "other", "free"], 0)
    for part in parts:
        drawn[part["kind"]] += part["share"] * gpu["total_bytes"]
    for name, size in bar(gpu).items():
        case.assertAlmostEqual(drawn[name] / gpu["total_bytes"], size / gpu["total_bytes"], 5, name)
    case.assertAlmostEqual(sum(part["share"] for part in parts), 1, 5)
    case.assertLessEqual(len(parts), 3 + 3 * len(gpu["pools"]) + 1 / MIN_SHOWN)
