// The status page: fetches status.json periodically, and updates the elements that it shows. Names
// come from pods and may contain anything, so they become text, never markup.
'use strict';

const REFRESH_MS = 2000;
const DEADLINE_MS = 5000;
const COLOURS = 8;
// Smaller parts of a bar are too small to see or select: those of one pod and kind are merged.
const SMALL = 0.004;
// Longer lists are folded.
const BUFFERS_SHOWN = 12;
const PODS_SHOWN = 8;
const GPUS_UNFOLDED = 4;

const KINDS = {
  shared: 'shared by several',
  one: 'held by one',
  idle: 'attached by nobody',
  granted: 'granted to pods, not used',
  other: 'other: contexts, private memory, other processes',
  free: 'free',
};
const BROKERS = {
  connected: 'broker connected',
  away: 'broker away: its process lives, but it is not connected',
  none: 'no broker: not started, or ended and its buffers kept for a successor',
};
const STATES = {
  ready: ['ready', 'good'],
  loading: ['loading', 'warn'],
  unpublished: ['unpublished', 'warn'],
  'writer-died': ['writer died', 'bad'],
  failed: ['failed', 'bad'],
};

const byId = (id) => document.getElementById(id);
const sum = (list, of) => list.reduce((total, item) => total + (of(item) ?? 0), 0);

function bytes(value) {
  if (value === null || value === undefined) return 'unknown';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  while (value >= 999.5 && unit + 1 < units.length) {
    value /= 1024;
    unit += 1;
  }
  const decimals = Number.isInteger(value) ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return `${value.toFixed(decimals)} ${units[unit]}`;
}

function count(number, one, several = `${one}s`) {
  return `${number} ${number === 1 ? one : several}`;
}

function duration(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const setClass = (node, name) => {
  if (node.className !== name) node.className = name;
};

// Gives `parent` one element for each item, in their order. An element stays as long as its key,
// so that focus, selected text and open lists survive a refresh. `parent.lead` stays before them.
function sync(parent, items, keyOf, make, update) {
  const old = parent.byKey ?? new Map();
  const now = new Map();
  for (const item of items) {
    let key = keyOf(item);
    while (now.has(key)) key += '\n';
    now.set(key, item);
  }
  for (const [key, node] of old) {
    if (!now.has(key)) {
      node.remove();
      old.delete(key);
    }
  }
  let place = parent.lead ? parent.lead.nextSibling : parent.firstChild;
  for (const [key, item] of now) {
    let node = old.get(key);
    if (!node) {
      node = make(item);
      old.set(key, node);
    }
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
    update(node, item);
  }
  parent.byKey = old;
}

// <dl> of [term, text] pairs.
function figures(list, pairs) {
  sync(list, pairs, ([term]) => term,
    ([term]) => el('div', {}, el('dt', {}, term), el('dd')),
    (node, [, text]) => setText(node.lastChild, text));
}

// ---------------------------------------------------------------- names

const podName = (pool) => (pool.pod ? `${pool.namespace}/${pool.pod}` : pool.allocation);
const gpuName = (gpu) => `GPU ${gpu.index}`;
const users = (buffer) => sum(buffer.attachments, (a) => a.count);
const kindOf = (buffer) => ['idle', 'one'][users(buffer)] ?? 'shared';
const holderName = (a) => `${a.container} (${a.access}${a.count > 1 ? ` × ${a.count}` : ''})`;

// A pod keeps its colour while it exists; a new one gets the lowest free colour.
const colours = new Map();
function assignColours(gpus) {
  const pods = new Set(gpus.flatMap((gpu) => gpu.pools.map(podName)));
  for (const pod of colours.keys()) if (!pods.has(pod)) colours.delete(pod);
  const used = new Set(colours.values());
  for (const pod of pods) {
    if (colours.has(pod)) continue;
    let colour = 0;
    while (used.has(colour)) colour += 1;
    used.add(colour);
    colours.set(pod, colour);
  }
}
const colourOf = (pool) => `c${colours.get(podName(pool)) % COLOURS}`;

// The names of a pod's GPUs, in the order of their numbers in the pod. Keyed by allocation.
let gpusOfPods = new Map();
function collectGpus(gpus) {
  gpusOfPods = new Map();
  for (const gpu of gpus) {
    for (const pool of gpu.pools) {
      if (!gpusOfPods.has(pool.allocation)) gpusOfPods.set(pool.allocation, []);
      gpusOfPods.get(pool.allocation)[pool.gpu_number] = gpuName(gpu);
    }
  }
}

// Empty for a pod with one GPU. A GPU that the plugin does not advertise has no name here. A pod's processes are in the document with its first GPU only.
function numberOf(pool) {
  if (pool.pod_gpus === 1) return '';
  const gpus = gpusOfPods.get(pool.allocation);
  const list = Array.from({ length: pool.pod_gpus }, (_, i) => gpus[i] ?? 'another').join(', ');
  const counted = pool.gpu_number > 0 && gpus[0] ? `; clients are counted on ${gpus[0]}` : '';
  return `number ${pool.gpu_number} of the pod’s ${pool.pod_gpus} GPUs: ${list}${counted}`;
}

// ---------------------------------------------------------------- the bar

function bufferPart(pool, buffer) {
  const holders = buffer.attachments.map(holderName).join(', ') || 'nobody';
  const facts = () => [
    ['Pod', podName(pool)],
    ...(pool.pod_gpus > 1 ? [['GPU of the pod', `${pool.gpu_number} of ${pool.pod_gpus}`]] : []),
    ['State', STATES[buffer.state]?.[0] ?? buffer.state],
    ['Size', bytes(buffer.size_bytes)], ['On the GPU', bytes(buffer.allocated_bytes)],
    ['Generations', String(buffer.generations)], ['Transport', buffer.transport],
    ['Made by', buffer.creator || 'annotation'],
    ['Age', buffer.created_unix_ms ? duration(nowMs - buffer.created_unix_ms) : 'unknown'],
    ...(buffer.state === 'loading' ? [['Loaded', bytes(buffer.loaded_bytes)]] : []),
    ...(buffer.reason ? [['Reason', buffer.reason]] : []),
    ['Held by', holders],
  ];
  return {
    key: `b ${pool.allocation} ${buffer.name}`, kind: kindOf(buffer), colour: colourOf(pool),
    bytes: buffer.allocated_bytes, name: buffer.name, of: podName(pool), facts,
  };
}

function smallPart(pool, kind, buffers) {
  const shown = buffers.slice(0, 20).map((b) => b.name).join(', ');
  const more = buffers.length > 20 ? `, and ${buffers.length - 20} more` : '';
  return {
    key: `s ${pool.allocation} ${kind}`, kind, colour: colourOf(pool),
    bytes: sum(buffers, (b) => b.allocated_bytes), name: `${buffers.length} small buffers`,
    of: podName(pool), facts: () => [['Pod', podName(pool)], ['Buffers', shown + more]],
  };
}

function poolParts(gpu, pool) {
  const parts = [];
  for (const kind of ['shared', 'one', 'idle']) {
    const all = pool.buffers.filter((b) => b.allocated_bytes > 0 && kindOf(b) === kind);
    const small = all.filter((b) => b.allocated_bytes < gpu.total_bytes * SMALL);
    const few = small.length < 2 ? new Set() : new Set(small);
    for (const buffer of all) if (!few.has(buffer)) parts.push(bufferPart(pool, buffer));
    if (few.size > 0) parts.push(smallPart(pool, kind, small));
  }
  return parts;
}

// Grants and use overlap: a pod's private memory is both granted and "other". So what the driver
// shows as private is subtracted from the grant, and the unused part is at most what the card has
// left.
function restOf(gpu) {
  const mine = sum(gpu.pools.flatMap((p) => p.containers), (c) => c.private_bytes);
  const other = gpu.other_bytes ?? 0;
  const left = Math.max(0, gpu.total_bytes - gpu.buffers_bytes - other);
  const granted = Math.min(left, Math.max(0, gpu.bound_bytes - gpu.buffers_bytes - mine));
  return { granted, other, free: left - granted };
}

function partsOf(gpu) {
  const parts = gpu.pools.flatMap((pool) => poolParts(gpu, pool));
  const rest = restOf(gpu);
  for (const kind of ['granted', 'other', 'free']) {
    if (rest[kind] <= 0) continue;
    const unsure = kind === 'free' && gpu.other_bytes === null;
    parts.push({
      key: kind, kind, colour: '', bytes: rest[kind], name: unsure ? 'not granted' : kind,
      what: unsure ? 'free, or used by others: the driver does not report it' : KINDS[kind],
      of: gpuName(gpu), facts: () => [['Size', bytes(rest[kind])]],
    });
  }
  return parts;
}

function showPanel(card) {
  const part = card.parts.get(card.selected);
  card.panel.hidden = !part;
  for (const [key, item] of card.bar.byKey) {
    const here = part !== undefined && key === card.selected;
    if (here) item.button.setAttribute('aria-current', 'true');
    else item.button.removeAttribute('aria-current');
  }
  if (!part) return;
  setText(card.panelTitle, part.name);
  setText(card.panelKind, `${part.what ?? KINDS[part.kind]}, ${bytes(part.bytes)}`);
  figures(card.panelFacts, part.facts());
}

function select(card, button) {
  for (const item of card.bar.children) item.button.tabIndex = item.button === button ? 0 : -1;
  card.selected = button.key;
  showPanel(card);
}

function walk(card, event) {
  const buttons = [...card.bar.children].map((item) => item.button);
  const at = buttons.indexOf(event.target);
  const to = {
    ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1,
    Home: 0, End: buttons.length - 1,
  }[event.key];
  if (event.key === 'Escape') {
    card.selected = null;
    showPanel(card);
  } else if (at >= 0 && to !== undefined) {
    event.preventDefault();
    buttons[Math.min(buttons.length - 1, Math.max(0, to))].focus();
  }
}

function makePart(card, part) {
  const button = el('button', { type: 'button', tabindex: '-1' }, el('span'));
  button.key = part.key;
  button.addEventListener('focus', () => select(card, button));
  button.addEventListener('click', () => select(card, button));  // Safari sets no focus on a click.
  const item = el('li', {}, button);
  item.button = button;
  return item;
}

function drawPart(item, part, total) {
  const { button } = item;
  item.style.flexGrow = String((part.bytes / total) * 1000);
  setClass(button, `${part.kind} ${part.colour}`);
  setText(button.firstChild, part.name);
  const text = `${part.name}, ${part.of}: ${bytes(part.bytes)}, ${part.what ?? KINDS[part.kind]}`;
  if (button.title === text) return;
  button.title = text;
  button.setAttribute('aria-label', text);
}

function drawBar(card, gpu) {
  const parts = partsOf(gpu);
  const total = Math.max(1, gpu.total_bytes);
  card.parts = new Map(parts.map((part) => [part.key, part]));
  const focused = card.bar.contains(document.activeElement);
  sync(card.bar, parts, (part) => part.key, (part) => makePart(card, part),
    (item, part) => drawPart(item, part, total));
  const rest = restOf(gpu);
  card.bar.setAttribute('aria-label', `Memory of ${gpuName(gpu)}: ${bytes(gpu.buffers_bytes)} in ` +
    `buffers, ${bytes(rest.granted)} granted and not used, ${bytes(gpu.other_bytes)} other, ` +
    `${bytes(rest.free)} free`);
  const buttons = [...card.bar.children].map((item) => item.button);
  if (buttons.length > 0 && !buttons.some((button) => button.tabIndex === 0)) {
    buttons[0].tabIndex = 0;
    if (focused) buttons[0].focus();  // The focused part no longer exists.
  }
  if (card.selected && !card.parts.has(card.selected)) card.selected = null;
  showPanel(card);
}

// ---------------------------------------------------------------- tables

function makeTable(name, caption, columns) {
  const head = el('tr', { role: 'row' });
  for (const [title, kind] of columns) {
    head.append(el('th', { scope: 'col', role: 'columnheader', class: kind }, title));
  }
  // Roles are explicit, because the layout for phones removes them from the elements.
  const table = el('table', { role: 'table', class: name }, el('caption', {}, caption),
    el('thead', { role: 'rowgroup' }, head));
  table.lead = table.lastChild;
  return table;
}

function cell(label, kind, text) {
  const attributes = { role: 'cell', class: kind };
  if (label) attributes['data-label'] = label;
  return el('td', attributes, text);
}

const BUFFER_COLUMNS = [['Buffer', ''], ['State', ''], ['Size', 'n'], ['Held by', ''],
  ['Access', ''], ['Count', 'n'], ['Mapped', 'n'], ['Share', 'n']];

function drawBuffer(body, buffer) {
  const text = JSON.stringify(buffer);
  if (body.shown === text) return;
  body.shown = text;
  const rows = Math.max(1, buffer.attachments.length) + (buffer.reason ? 1 : 0);
  const [state, mood] = STATES[buffer.state] ?? [buffer.state, 'warn'];
  const loaded = buffer.state === 'loading' && buffer.loaded_bytes !== null
    ? `, ${bytes(buffer.loaded_bytes)}` : '';
  const first = [
    el('th', { scope: 'rowgroup', role: 'rowheader', rowspan: rows }, buffer.name),
    cell('', `half ${mood}`, state + loaded), cell('', 'half n', bytes(buffer.allocated_bytes)),
  ];
  for (const node of first.slice(1)) node.rowSpan = rows;
  const lines = buffer.attachments.map((a) => [
    cell('', 'holder', a.container), cell('', '', a.access), cell('', 'n', `× ${a.count}`),
    cell('Mapped', 'half n', bytes(a.mapped_bytes)),
    cell('Share', 'half n', bytes(a.proportional_bytes)),
  ]);
  if (lines.length === 0) {
    const nobody = cell('', 'holder quiet', 'nobody');
    nobody.colSpan = 5;
    lines.push([nobody]);
  }
  if (buffer.reason) {
    const reason = cell('', `holder ${mood}`, buffer.reason);
    reason.colSpan = 5;
    lines.push([reason]);
  }
  body.replaceChildren(...lines.map((cells, i) =>
    el('tr', { role: 'row' }, ...(i === 0 ? first : []), ...cells)));
}

const makeBuffers = () => makeTable('buffers', 'Buffers, and who holds them', BUFFER_COLUMNS);

function drawBuffers(table, buffers) {
  table.hidden = buffers.length === 0;
  sync(table, buffers, (b) => b.name, () => el('tbody', { role: 'rowgroup' }), drawBuffer);
}

const CONTAINER_COLUMNS = [['Container', ''], ['Clients', 'n'], ['Mapped', 'n'], ['Share', 'n'],
  ['Private', 'n']];

const makeContainers = () => makeTable('containers', 'Containers', CONTAINER_COLUMNS);

function drawContainers(table, pool) {
  table.hidden = pool.containers.length === 0;
  sync(table, pool.containers, (c) => c.name, () => {
    const cells = CONTAINER_COLUMNS.slice(1).map(([title]) => cell(title, 'half n', ''));
    const name = el('th', { scope: 'row', role: 'rowheader' });
    return el('tbody', { role: 'rowgroup' }, el('tr', { role: 'row' }, name, ...cells));
  }, (body, c) => {
    const texts = [c.name === 'gpushm' ? 'gpushm (sidecar)' : c.name, pool.gpu_number > 0 ? '–' : String(c.clients),
      bytes(c.mapped_bytes), bytes(c.proportional_bytes),
      c.private_limit_bytes ? `${bytes(c.private_bytes)} of ${bytes(c.private_limit_bytes)}`
        : bytes(c.private_bytes)];
    texts.forEach((text, i) => setText(body.firstChild.children[i], text));
  });
}

// A list whose end is folded, and not built until somebody unfolds it.
function makeFold(make) {
  const box = el('div');
  box.first = make();
  box.rest = make();
  box.more = el('details', {}, el('summary'), box.rest);
  box.more.addEventListener('toggle', () => box.drawRest());
  box.append(box.first, box.more);
  return box;
}

function drawFold(box, items, limit, word, draw) {
  const rest = items.slice(limit);
  draw(box.first, items.slice(0, limit));
  box.more.hidden = rest.length === 0;
  setText(box.more.firstChild, `${count(rest.length, `more ${word}`)}`);
  box.drawRest = () => draw(box.rest, box.more.open ? rest : []);
  box.drawRest();
}

// ---------------------------------------------------------------- pods and GPUs

let names = 0;
const newId = () => `n${(names += 1)}`;

// Null: the pod has no MPS.
function mpsLine(mps) {
  if (!mps) return ['', 'quiet'];
  const outside = mps.outside_processes > 0
    ? `, ${count(mps.outside_processes, 'process', 'processes')} outside of it` : '';
  const restarts = mps.daemon_restarts + mps.server_restarts;
  const restarted = restarts > 0 ? `, restarted ${count(restarts, 'time')}` : '';
  return [`${mps.ready ? `MPS serves ${count(mps.clients, 'process', 'processes')}` : 'MPS serves nobody'}${
    restarted}${outside}`, mps.ready && outside === '' ? 'quiet' : 'warn'];
}

function makePool() {
  const box = el('section', { class: 'pool' });
  const id = newId();
  const number = newId();
  // A pod with several GPUs has several of these.
  box.setAttribute('aria-labelledby', `${id} ${number}`);
  box.swatch = el('span');
  box.name = el('span');
  box.sizes = el('span', { class: 'quiet' });
  box.gpus = el('span', { id: number, class: 'gpus quiet' });
  box.broker = el('span');
  box.mps = el('span');
  box.buffers = makeFold(makeBuffers);
  box.containers = makeContainers();
  box.append(
    el('div', { class: 'head' }, el('h3', { id }, box.swatch, box.name), box.sizes, box.gpus,
      box.broker, box.mps),
    el('div', { class: 'tables' }, box.buffers, box.containers));
  return box;
}

function drawPool(box, pool) {
  setClass(box.swatch, `swatch shared ${colourOf(pool)}`);
  setText(box.name, podName(pool));
  setText(box.sizes, `${bytes(pool.allocated_bytes)} in ${count(pool.buffers.length, 'buffer')}, ` +
    `of ${bytes(pool.size_bytes)} granted`);
  const number = numberOf(pool);
  setText(box.gpus, number);
  box.gpus.hidden = number === '';
  setText(box.broker, BROKERS[pool.broker] ?? pool.broker);
  setClass(box.broker, pool.broker === 'connected' ? 'quiet' : 'warn');
  const [mps, look] = mpsLine(pool.mps);
  setText(box.mps, mps);
  setClass(box.mps, look);
  const largest = [...pool.buffers].sort((a, b) => b.allocated_bytes - a.allocated_bytes);
  drawFold(box.buffers, largest, BUFFERS_SHOWN, 'buffer', drawBuffers);
  drawContainers(box.containers, pool);
}

const drawPools = (box, pools) => sync(box, pools, (p) => p.allocation, makePool, drawPool);

function makeGpu(unfolded) {
  const id = newId();
  const card = el('section', { class: 'gpu', 'aria-labelledby': id });
  card.name = el('h2', { id });
  card.model = el('span');
  card.health = el('span');
  card.load = el('span', { class: 'quiet' });
  card.uuid = el('code', { class: 'uuid quiet' });
  card.reason = el('p', { class: 'reason' });
  card.bar = el('ul', { class: 'bar', role: 'list' });  // Explicit: it has no bullets.
  card.bar.addEventListener('keydown', (event) => walk(card, event));
  card.panelTitle = el('p', { class: 'title' });
  card.panelKind = el('p', { class: 'quiet' });
  card.panelFacts = el('dl', { class: 'figures' });
  card.panel = el('section', { class: 'panel', 'aria-label': 'Selected part of the bar' },
    card.panelTitle, card.panelKind, card.panelFacts);
  card.panel.hidden = true;
  card.figures = el('dl', { class: 'figures' });
  card.pools = makeFold(() => el('div'));
  card.list = el('details', {}, el('summary'), card.pools);
  card.list.open = unfolded;
  card.list.addEventListener('toggle', () => card.drawPools());
  card.none = el('p', { class: 'quiet' }, 'No pod has memory here.');
  const head = el('div', { class: 'head' });
  head.append(card.name, card.model, card.health, card.load, card.uuid);
  card.append(head, card.reason, card.bar, card.panel, card.figures, card.list, card.none);
  return card;
}

function loadText(gpu) {
  const parts = [];
  if (gpu.utilization !== null) parts.push(`${Math.round(gpu.utilization * 100)} % busy`);
  if (gpu.temperature_celsius !== null) parts.push(`${Math.round(gpu.temperature_celsius)} °C`);
  if (gpu.power_watts !== null) parts.push(`${Math.round(gpu.power_watts)} W`);
  const age = gpu.sampled_unix_ms === null ? 0 : nowMs - gpu.sampled_unix_ms;
  if (parts.length > 0 && age > 10000) parts.push(`${duration(age)} ago`);
  return parts.join(', ');
}

// Why no new pod is bound to this GPU; empty if one may be.
function reasonOf(gpu) {
  if (!gpu.healthy || gpu.reason) return gpu.reason || 'Unknown reason.';
  if (gpu.drained) return `Drained: ${gpu.drained}. No new pod is bound here.`;
  if (gpu.taken_by) return `${gpu.taken_by} also hands out this GPU: no new pod is bound here.`;
  return gpu.exclusive_to && `Only for pod ${gpu.exclusive_to} (gpushm.io/exclusive).`;
}

function drawGpu(card, gpu) {
  setText(card.name, gpuName(gpu));
  setText(card.model, gpu.model + (gpu.mig_profile ? ` · MIG ${gpu.mig_profile}` : ''));
  setText(card.health, gpu.healthy ? '✓ healthy' : '✕ unhealthy');
  setClass(card.health, gpu.healthy ? 'good' : 'bad');
  setText(card.load, loadText(gpu));
  setText(card.uuid, gpu.uuid);
  const why = reasonOf(gpu);
  card.reason.hidden = !why;
  setText(card.reason, why);
  drawBar(card, gpu);
  figures(card.figures, [
    ['Memory', bytes(gpu.total_bytes)],
    ['In use', bytes(gpu.used_bytes)],
    ['In buffers', bytes(gpu.buffers_bytes)],
    ['Other', bytes(gpu.other_bytes)],
    ['Granted', `${bytes(gpu.bound_bytes)} of ${bytes(gpu.allocatable_bytes)}`],
    ['Saved by sharing', bytes(gpu.saved_bytes)],
    ...(gpu.kept_bytes > 0 ? [['Kept for successors', bytes(gpu.kept_bytes)]] : []),
  ]);
  card.none.hidden = gpu.pools.length > 0;
  card.list.hidden = gpu.pools.length === 0;
  setText(card.list.firstChild, `${count(gpu.pools.length, 'pod')}, ` +
    count(sum(gpu.pools, (p) => p.buffers.length), 'buffer'));
  card.drawPools = () => {
    if (card.list.open) drawFold(card.pools, gpu.pools, PODS_SHOWN, 'pod', drawPools);
  };
  card.drawPools();
}

// ---------------------------------------------------------------- the page

let nowMs = 0;  // Time of the answer, by the plugin's clock.

function drawEmpty(doc) {
  const pools = sum(doc.gpus, (gpu) => gpu.pools.length);
  byId('empty').hidden = pools > 0;
  byId('empty-next').hidden = doc.gpus.length === 0;
  setText(byId('empty-reason'), doc.gpus.length === 0
    ? 'gpushm has no GPU on this node. The plugin’s log and "gpus" in its configuration say why.'
    : 'No GPU is bound yet: no pod on this node requests shared memory.');
}

function drawResources(resources) {
  byId('plugin').hidden = resources.length === 0;
  sync(byId('resources'), resources, (r) => r.name, () => el('li'), (item, r) => {
    const state = r.registered ? 'registered' : 'not registered with the kubelet';
    const bound = `${r.bound} of ${r.devices} bound`;
    // Of gpushm.io/exclusive, GPUs with pods that share them are not free, which is no fault.
    const alone = r.name === 'gpushm.io/exclusive';
    setText(item, `${r.name}: ${state}, ${bound}, ${r.unhealthy} ${alone ? 'not free' : 'unhealthy'}`);
    setClass(item, r.registered && (alone || r.unhealthy === 0) ? '' : 'warn');
  });
}

function draw(doc) {
  nowMs = doc.time_unix_ms;
  assignColours(doc.gpus);
  collectGpus(doc.gpus);
  document.title = `${doc.node} · gpushm`;
  setText(byId('node'), doc.node);
  setText(byId('saved'), bytes(sum(doc.gpus, (gpu) => gpu.saved_bytes)));
  const pools = doc.gpus.flatMap((gpu) => gpu.pools);
  figures(byId('totals'), [
    ['In buffers', bytes(sum(doc.gpus, (gpu) => gpu.buffers_bytes))],
    ['Granted to pods', `${bytes(sum(doc.gpus, (gpu) => gpu.bound_bytes))} of ` +
      bytes(sum(doc.gpus, (gpu) => gpu.allocatable_bytes))],
    ['GPUs healthy', `${doc.gpus.filter((gpu) => gpu.healthy).length} of ${doc.gpus.length}`],
    ['Pods', String(new Set(pools.map((pool) => pool.allocation)).size)],
    ['Buffers', String(sum(pools, (pool) => pool.buffers.length))],
    ['Plugin up for', duration(nowMs - doc.started_unix_ms)],
  ]);
  drawEmpty(doc);
  sync(byId('gpus'), doc.gpus, (gpu) => gpu.uuid,
    () => makeGpu(doc.gpus.length <= GPUS_UNFOLDED), drawGpu);
  drawResources(doc.resources);
  setText(byId('version'), `gpushm ${doc.version}`);
}

const clock = () => new Date().toLocaleTimeString([], { hour12: false });
let lastGood = null;

function showFresh() {
  lastGood = clock();
  setText(byId('when'), `Updated ${lastGood}`);
  setClass(byId('when'), '');
  byId('stale').hidden = true;
  setText(byId('stale'), '');
}

function showStale(error) {
  const late = error.name === 'TimeoutError';
  const why = late ? `no answer in ${DEADLINE_MS / 1000} s` : error.message;
  setText(byId('when'), lastGood ? `Outdated: from ${lastGood}` : 'No data yet');
  setClass(byId('when'), 'old');
  byId('stale').hidden = false;
  setText(byId('stale'), lastGood
    ? `The plugin has not answered since ${lastGood}; this page shows the data from then. (${why})`
    : `The plugin does not answer. (${why})`);
}

async function get() {
  const answer = await fetch('status.json',
    { cache: 'no-store', signal: AbortSignal.timeout(DEADLINE_MS) });
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  return answer.json();
}

let timer = 0;
let busy = false;

async function refresh() {
  clearTimeout(timer);
  if (document.hidden || busy) return;
  busy = true;
  try {
    const doc = await get();
    performance.mark('draw');
    draw(doc);
    performance.measure('draw', 'draw');
    showFresh();
  } catch (error) {
    showStale(error);
  }
  busy = false;
  timer = setTimeout(refresh, REFRESH_MS);
}

document.addEventListener('visibilitychange', refresh);
refresh();
