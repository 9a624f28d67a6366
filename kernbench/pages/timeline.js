"use strict";
// Lanes on a canvas. Times are in picoseconds; a view is the part of the span that is drawn.
const LANE = 17, HEAD = 21, RULER = 24, LEAST = 1000, WORK = [0, 1, 2];
const KIND_NAMES = ["compute", "communication", "copy", "wait", "host", "range"];

const unpacked = async (text) => {
  const letters = atob(text.replace(/-/g, "+").replace(/_/g, "/"));
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(plain).text());
};

// The first place of an ascending array whose value is above a bound.
const above = (values, bound) => {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > bound) high = middle; else low = middle + 1;
  }
  return low;
};

const union = (pairs) => {
  pairs.sort((one, other) => one[0] - other[0]);
  const merged = [];
  for (const [start, end] of pairs) {
    const last = merged[merged.length - 1];
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else if (start < end) merged.push([start, end]);
  }
  return merged;
};

const without = (left, right) => {
  const kept = [];
  let place = 0;
  for (const [begin, end] of left) {
    let start = begin;
    while (place < right.length && right[place][1] <= start) place += 1;
    for (let next = place; next < right.length && right[next][0] < end; next += 1) {
      if (start < right[next][0]) kept.push([start, right[next][0]]);
      start = Math.max(start, right[next][1]);
    }
    if (start < end) kept.push([start, end]);
  }
  return kept;
};

// Disjoint intervals, with the time before each, so that a part of them is summed at once.
class Busy {
  constructor(pairs) {
    this.starts = Float64Array.from(pairs, (pair) => pair[0]);
    this.ends = Float64Array.from(pairs, (pair) => pair[1]);
    this.before = new Float64Array(pairs.length + 1);
    pairs.forEach((pair, place) => {
      this.before[place + 1] = this.before[place] + pair[1] - pair[0];
    });
  }
  until(time) {
    const place = above(this.starts, time);
    if (!place) return 0;
    return this.before[place] - Math.max(0, this.ends[place - 1] - time);
  }
  between(start, end) { return this.until(end) - this.until(start); }
}

const lanesOf = (data) => data.lanes.map((row, number) => {
  const count = row.s.length, kinds = Array.isArray(row.k) ? row.k : data.lanes[row.k].k;
  const lane = {
    rank: row.r, name: row.n, host: row.h === 1, engine: row.e === 1, number, kinds,
    starts: new Float64Array(count), ends: new Float64Array(count),
    latest: new Float64Array(count), depths: new Uint8Array(count), deep: 1, slices: count,
  };
  let time = data.start, open = [], latest = -Infinity;
  for (let place = 0; place < count; place += 1) {
    time += row.s[place];
    const end = time + row.d[place];
    lane.starts[place] = time;
    lane.ends[place] = end;
    latest = Math.max(latest, end);
    lane.latest[place] = latest;
    while (open.length && open[open.length - 1] <= time) open.pop();
    lane.depths[place] = open.length;
    open.push(end);
    lane.deep = Math.max(lane.deep, lane.depths[place] + 1);
  }
  return lane;
});

const workOf = (lanes, names) => {
  const of = WORK.map(() => []), host = [];
  for (const lane of lanes) {
    // Engines show the parts of commands, which streams have as a whole.
    if (lane.engine) continue;
    for (let place = 0; place < lane.slices; place += 1) {
      const kind = names[lane.kinds[place]][1];
      const pair = [lane.starts[place], lane.ends[place]];
      if (lane.host) { if (kind === 4) host.push(pair); } else if (kind < 3) of[kind].push(pair);
    }
  }
  const [compute, messages, copies] = of.map(union);
  const device = union([...compute, ...messages].map((pair) => [...pair]));
  return [compute, without(messages, compute), without(copies, device), union(host)]
    .map((pairs) => new Busy(pairs));
};

class Timeline {
  constructor(root, data) {
    this.root = root;
    this.data = data;
    this.names = data.names;
    this.lanes = lanesOf(data).filter((lane) => lane.slices);
    this.ranks = new Map();
    for (const lane of this.lanes) {
      if (!this.ranks.has(lane.rank)) this.ranks.set(lane.rank, []);
      this.ranks.get(lane.rank).push(lane);
    }
    this.work = new Map([...this.ranks].map(([rank, lanes]) => [rank, workOf(lanes, this.names)]));
    this.open = new Set();
    this.engines = false;
    this.view = [data.start, data.end];
    this.frames = [];
    this.found = null;
    this.messages = this.messagesOf(data);
    this.canvas = root.querySelector("canvas");
    this.scroller = root.querySelector(".lanes");
    this.spacer = root.querySelector(".spacer");
    this.pen = this.canvas.getContext("2d");
    this.listen();
    this.layOut();
    this.coloured();
    this.told();
  }

  messagesOf(data) {
    const flat = data.messages, all = [];
    let time = data.start;
    for (let place = 0; place < flat.length; place += 5) {
      time += flat[place];
      all.push({ start: time, end: time + flat[place + 1], from: flat[place + 2],
        to: flat[place + 3], bytes: flat[place + 4] });
    }
    this.messageStarts = Float64Array.from(all, (each) => each.start);
    this.longest = all.reduce((most, each) => Math.max(most, each.end - each.start), 0);
    return all;
  }

  // ---- Rows: a head for each group of ranks, then lanes; of a folded group those of one rank.
  label(group) {
    const named = (rank) => this.data.labels[rank];
    if (group.length === 1) return named(group[0]);
    const runs = [];
    for (const rank of group) {
      const last = runs[runs.length - 1];
      if (last && rank === last[1] + 1) last[1] = rank; else runs.push([rank, rank]);
    }
    const texts = runs.map(([from, to]) => from === to ? `${from}` : `${from}-${to}`);
    return `ranks ${texts.slice(0, 3).join(", ")}${texts.length > 3 ? ", ..." : ""} (${group.length} alike)`;
  }

  layOut() {
    this.rows = [];
    this.middle = new Map();
    let y = RULER;
    const add = (ranks, head) => {
      this.rows.push({ y, high: HEAD, ...head });
      y += HEAD;
      for (const lane of this.ranks.get(ranks[0])) {
        if (lane.engine && !this.engines) continue;
        const high = LANE * lane.deep + 3;
        this.rows.push({ y, high, lane });
        const busy = !lane.host && !lane.engine && !this.middle.has(lane.rank);
        if (busy) for (const rank of ranks) this.middle.set(rank, y + LANE / 2);
        y += high;
      }
    };
    this.data.alike.forEach((group, number) => {
      const folds = group.length > 1;
      if (folds && this.open.has(number)) {
        group.forEach((rank, place) => add([rank], {
          text: place ? this.label([rank]) : `${this.label([rank])} of ${this.label(group)}`,
          group: place ? undefined : number, open: true }));
      } else add(group, { text: this.label(group), group: folds ? number : undefined, open: false });
    });
    this.high = y + 4;
    this.spacer.style.height = `${this.high}px`;
    const shown = Math.min(this.high, Math.max(240, Math.min(innerHeight * 0.62, 620)));
    this.scroller.style.height = `${shown}px`;
    this.resize();
  }

  resize() {
    const ratio = devicePixelRatio || 1;
    this.wide = this.scroller.clientWidth;
    this.tall = this.scroller.clientHeight;
    this.left = this.wide < 560 ? 74 : 148;
    this.canvas.width = Math.round(this.wide * ratio);
    this.canvas.height = Math.round(this.tall * ratio);
    this.canvas.style.width = `${this.wide}px`;
    this.canvas.style.height = `${this.tall}px`;
    this.spacer.style.marginTop = `${-this.tall}px`;
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.ask();
  }

  coloured() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    this.hues = [of("--c0"), of("--c1"), of("--c2"), of("--rest"), of("--host"), of("--c6")];
    [this.back, this.panel, this.ink, this.soft, this.rule, this.accent] =
      ["--back", "--panel", "--ink", "--soft", "--rule", "--accent"].map(of);
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    this.inks = [0, 1, 2, 3, 4, 5].map((kind) => dark ? (kind === 3 ? "#e3e8ec" : "#101418")
      : (kind === 3 || kind === 4 || kind === 1 || kind === 2 ? "#101418" : "#ffffff"));
    this.ask();
  }

  // ---- Drawing: at most once a frame.
  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame((now) => {
      this.asked = false;
      const begin = performance.now();
      this.draw();
      this.frames.push([now, performance.now() - begin]);
      if (this.frames.length > 1000) this.frames.shift();
    });
  }

  x(time) {
    return this.left + (time - this.view[0]) * (this.wide - this.left) / (this.view[1] - this.view[0]);
  }
  time(x) {
    return this.view[0] + (x - this.left) * (this.view[1] - this.view[0]) / (this.wide - this.left);
  }

  draw() {
    const pen = this.pen, top = this.scroller.scrollTop;
    pen.fillStyle = this.back;
    pen.fillRect(0, 0, this.wide, this.tall);
    pen.textBaseline = "middle";
    this.font = "11px system-ui, sans-serif";
    pen.font = this.font;
    for (const row of this.rows) {
      const y = row.y - top;
      if (y + row.high < RULER || y > this.tall) continue;
      if (row.lane) this.drawLane(row.lane, y); else this.drawHead(row, y);
    }
    pen.save();
    pen.beginPath();
    pen.rect(this.left, RULER, this.wide - this.left, this.tall - RULER);
    pen.clip();
    this.drawMessages(top);
    this.drawRange();
    pen.restore();
    this.drawRuler();
  }

  drawHead(row, y) {
    const pen = this.pen;
    pen.fillStyle = this.panel;
    pen.fillRect(0, y + 2, this.wide, HEAD - 3);
    pen.fillStyle = this.ink;
    pen.font = "600 11px system-ui, sans-serif";
    const mark = row.group === undefined ? "" : row.open ? "\u25be " : "\u25b8 ";
    pen.fillText(mark + row.text, 6, y + HEAD / 2);
    pen.font = this.font;
  }

  drawLane(lane, y) {
    const pen = this.pen, [from, to] = this.view, left = this.left;
    pen.fillStyle = this.soft;
    pen.fillText(lane.name, 6, y + LANE / 2, left - 12);
    const scale = (this.wide - left) / (to - from);
    const drawn = new Float64Array(lane.deep).fill(-1);
    for (let place = above(lane.latest, from); place < lane.slices; place += 1) {
      const start = lane.starts[place];
      if (start >= to) break;
      const depth = lane.depths[place];
      const right = Math.min(this.wide, left + (lane.ends[place] - from) * scale);
      const begin = Math.max(left, left + (start - from) * scale);
      const number = lane.kinds[place];
      const hit = this.found !== null && this.found.has(number);
      if (right < drawn[depth] + 0.5 && !hit) continue;
      const kind = this.names[number][1];
      const width = Math.max(right - begin, 0.75);
      drawn[depth] = begin + width;
      if (begin + width < left) continue;
      pen.globalAlpha = this.found !== null && !hit ? 0.18 : 1;
      pen.fillStyle = this.hues[kind];
      const high = y + 1 + depth * LANE;
      pen.fillRect(begin, high, width > 3 ? width - 0.5 : width, LANE - 2);
      if (width > 34) {
        const text = this.names[number][0], fits = Math.floor((width - 6) / 5.6);
        pen.fillStyle = this.inks[kind];
        pen.fillText(text.length > fits ? `${text.slice(0, Math.max(1, fits - 1))}\u2026` : text,
          begin + 3, high + LANE / 2 - 1);
      }
    }
    pen.globalAlpha = 1;
    const chosen = this.chosen;
    if (chosen && chosen.lane === lane) {
      const begin = Math.max(left, this.x(lane.starts[chosen.place]));
      const width = Math.max(2, this.x(lane.ends[chosen.place]) - begin);
      if (begin < this.wide && begin + width > left) {
        pen.strokeStyle = this.ink;
        pen.lineWidth = 2;
        pen.strokeRect(begin, y + 1 + lane.depths[chosen.place] * LANE, width, LANE - 2);
      }
    }
  }

  drawMessages(top) {
    const [from, to] = this.view, some = [];
    const chosen = this.chosen;
    const first = above(this.messageStarts, from - this.longest);
    for (let place = first; place < this.messages.length; place += 1) {
      const each = this.messages[place];
      if (each.start >= to) break;
      if (each.end <= from) continue;
      if (chosen && this.names[chosen.lane.kinds[chosen.place]][1] === 1) {
        const { lane, place: at } = chosen;
        if (each.from !== lane.rank && each.to !== lane.rank) continue;
        if (each.end <= lane.starts[at] || each.start >= lane.ends[at]) continue;
      }
      some.push(each);
      // More are not told apart: zooming in shows them.
      if (some.length > 600) return;
    }
    const pen = this.pen;
    pen.strokeStyle = this.ink;
    pen.fillStyle = this.ink;
    pen.lineWidth = 1;
    pen.globalAlpha = 0.55;
    for (const each of some) {
      const [a, b] = [this.middle.get(each.from), this.middle.get(each.to)];
      if (a === undefined || b === undefined || a === b) continue;
      const [x0, x1, y0, y1] = [this.x(each.start), this.x(each.end), a - top, b - top];
      pen.beginPath();
      pen.moveTo(x0, y0);
      pen.bezierCurveTo(x0 + (x1 - x0) * 0.4, y0, x1 - (x1 - x0) * 0.4, y1, x1, y1);
      pen.stroke();
      pen.beginPath();
      pen.moveTo(x1 + 1, y1);
      pen.lineTo(x1 - 5, y1 - 3);
      pen.lineTo(x1 - 5, y1 + 3);
      pen.fill();
    }
    pen.globalAlpha = 1;
  }

  drawRange() {
    if (!this.range) return;
    const pen = this.pen, [x0, x1] = this.range.map((time) => this.x(time));
    pen.fillStyle = this.accent;
    pen.globalAlpha = 0.16;
    pen.fillRect(x0, 0, x1 - x0, this.tall);
    pen.globalAlpha = 1;
    pen.fillRect(x0, 0, 1, this.tall);
    pen.fillRect(x1, 0, 1, this.tall);
  }

  drawRuler() {
    const pen = this.pen, [from, to] = this.view;
    pen.fillStyle = this.back;
    pen.fillRect(0, 0, this.wide, RULER);
    pen.fillStyle = this.rule;
    pen.fillRect(0, RULER - 1, this.wide, 1);
    const most = Math.max(2, Math.floor((this.wide - this.left) / 90));
    const raw = (to - from) / most, power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 5, 10].find((each) => each * power >= raw);
    pen.font = this.font;
    for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
      const x = this.x(time);
      pen.fillStyle = this.rule;
      pen.fillRect(x, RULER - 7, 1, 7);
      pen.fillStyle = this.soft;
      if (x < this.wide - 50) pen.fillText(timeText(time), x + 4, RULER / 2);
    }
    if (this.range) {
      pen.fillStyle = this.accent;
      const [x0, x1] = this.range.map((time) => Math.max(this.left, this.x(time)));
      if (x1 > x0) pen.fillRect(x0, RULER - 4, x1 - x0, 4);
    }
  }

  // ---- What the reader does.
  zoom(factor, at = (this.view[0] + this.view[1]) / 2) {
    const [from, to] = this.view, whole = this.data.end - this.data.start;
    const long = Math.min(whole, Math.max(LEAST, (to - from) * factor));
    const share = (at - from) / (to - from);
    this.show(at - share * long, long);
  }
  show(from, long = this.view[1] - this.view[0]) {
    const start = Math.max(this.data.start, Math.min(from, this.data.end - long));
    this.view = [start, start + long];
    this.ask();
  }
  pan(share) { this.show(this.view[0] + share * (this.view[1] - this.view[0])); }
  whole() { this.view = [this.data.start, this.data.end]; this.ask(); }
  brush(range) {
    this.range = range && [Math.max(range[0], this.data.start), Math.min(range[1], this.data.end)];
    this.told();
    this.ask();
  }

  at(x, y) {
    const high = y + this.scroller.scrollTop;
    const row = this.rows.find((each) => high >= each.y && high < each.y + each.high);
    if (!row || !row.lane || x < this.left) return { row };
    const lane = row.lane, depth = Math.floor((high - row.y) / LANE);
    const near = (this.view[1] - this.view[0]) / (this.wide - this.left) * 3;
    const time = this.time(x);
    let best = null, gap = near;
    for (let place = above(lane.latest, time - near); place < lane.slices; place += 1) {
      if (lane.starts[place] > time + near) break;
      if (lane.depths[place] !== depth) continue;
      const away = Math.max(lane.starts[place] - time, time - lane.ends[place], 0);
      if (best === null || away < gap) { best = place; gap = away; }
      if (!gap) break;
    }
    return { row, lane, place: best };
  }

  choose(lane, place) {
    this.chosen = lane && { lane, place };
    const out = this.root.querySelector(".chosen");
    out.replaceChildren();
    if (lane) {
      const [name, kind, line, source] = this.names[lane.kinds[place]];
      const add = (tag, text, extra) => {
        const part = document.createElement(tag);
        part.textContent = text;
        if (extra) part.className = extra;
        out.append(part, " ");
      };
      const [start, end] = [lane.starts[place], lane.ends[place]];
      add("strong", name);
      add("span", `${KIND_NAMES[kind]}, ${this.data.labels[lane.rank]}, ${lane.name}: ` +
        `${timeText(end - start)} from ${timeText(start, 7)} to ${timeText(end, 7)}`);
      if (line) add("code", source ? `${line}: ${source}` : line);
      else add("span", "no line of the program asked for it", "soft");
    } else out.textContent = "Nothing is chosen.";
    this.ask();
  }

  step(by) {
    const rows = this.rows.filter((row) => row.lane);
    let { lane, place } = this.chosen || {};
    if (!lane) {
      lane = rows[0].lane;
      place = Math.min(above(lane.latest, this.view[0]), lane.slices - 1);
    } else {
      const next = place + by;
      if (next < 0 || next >= lane.slices) return;
      place = next;
    }
    this.choose(lane, place);
    this.reveal(lane, place);
  }
  stepLane(by) {
    const lanes = this.rows.filter((row) => row.lane).map((row) => row.lane);
    if (!this.chosen) { this.step(0); return; }
    const at = lanes.findIndex((lane) => lane.number === this.chosen.lane.number);
    const lane = lanes[Math.min(Math.max(at + by, 0), lanes.length - 1)];
    const time = this.chosen.lane.starts[this.chosen.place];
    const place = Math.min(above(lane.latest, time), lane.slices - 1);
    this.choose(lane, place);
    this.reveal(lane, place);
  }
  reveal(lane, place) {
    const [start, end] = [lane.starts[place], lane.ends[place]], [from, to] = this.view;
    if (end < from || start > to) this.show(start - (to - from) / 3);
    const row = this.rows.find((each) => each.lane && each.lane.number === lane.number);
    const y = row ? row.y - this.scroller.scrollTop : 0;
    if (row && (y < RULER || y + row.high > this.tall)) this.scroller.scrollTop = row.y - RULER - HEAD;
  }

  search(text) {
    const wanted = text.trim().toLowerCase(), out = this.root.querySelector(".hits");
    this.found = null;
    this.hits = [];
    out.textContent = "";
    if (wanted) {
      this.found = new Set(this.names.flatMap((name, number) =>
        name[0].toLowerCase().includes(wanted) || name[2].toLowerCase().includes(wanted) ? [number] : []));
      for (const { lane } of this.rows) {
        if (lane) lane.kinds.forEach((number, place) => {
          if (this.found.has(number)) this.hits.push([lane, place]);
        });
      }
      this.hits.sort((one, other) => one[0].starts[one[1]] - other[0].starts[other[1]]);
      out.textContent = `${this.hits.length} found`;
    }
    this.hit = -1;
    this.ask();
  }
  next(by) {
    if (!this.hits || !this.hits.length) return;
    this.hit = (this.hit + by + this.hits.length) % this.hits.length;
    const [lane, place] = this.hits[this.hit];
    this.choose(lane, place);
    this.reveal(lane, place);
    this.root.querySelector(".hits").textContent = `${this.hit + 1} of ${this.hits.length}`;
  }

  // ---- The breakdown of the range; of all, if none is brushed.
  told() {
    const [from, to] = this.range || [this.data.start, this.data.end], long = to - from;
    const title = this.range
      ? `Breakdown of ${timeText(from, 6)} to ${timeText(to, 6)}, ${timeText(long)}`
      : `Breakdown of the whole run, ${timeText(long)}`;
    this.root.querySelector(".title").textContent = title;
    const body = this.root.querySelector(".range tbody");
    body.replaceChildren();
    this.root.querySelector(".clear").disabled = !this.range;
    for (const group of this.data.alike.slice(0, 24)) {
      const row = document.createElement("tr"), sums = [0, 0, 0, 0];
      for (const rank of group) {
        this.work.get(rank).forEach((busy, kind) => { sums[kind] += busy.between(from, to); });
      }
      const means = sums.map((sum) => sum / group.length);
      const idle = long - means[0] - means[1] - means[2];
      const head = document.createElement("th");
      head.scope = "row";
      head.textContent = group.length > 1 ? `${this.label(group)}, mean` : this.label(group);
      row.append(head);
      for (const value of [means[0], means[1], means[2], idle, means[3]]) {
        const cell = document.createElement("td");
        cell.className = "n";
        cell.dataset.n = value;
        cell.textContent = `${timeText(value)}, ${(long ? 100 * value / long : 0).toFixed(0)}%`;
        row.append(cell);
      }
      const bar = document.createElement("td");
      bar.className = "parts";
      bar.setAttribute("aria-hidden", "true");
      [means[0], means[1], means[2], idle].forEach((value, kind) => {
        const part = document.createElement("i");
        part.className = kind === 3 ? "kr" : `k${kind}`;
        part.style.width = `${long ? 100 * value / long : 0}%`;
        bar.append(part);
      });
      row.append(bar);
      body.append(row);
    }
  }

  listen() {
    const canvas = this.canvas, place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      const [x, y] = place(event);
      drag = { x, y, view: this.view, brush: y < RULER || event.shiftKey, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event);
      if (!drag) {
        const { lane, place: at } = this.at(x, y);
        canvas.style.cursor = y < RULER ? "col-resize" : lane && at !== null ? "pointer" : "grab";
        return;
      }
      if (Math.abs(x - drag.x) + Math.abs(y - drag.y) > 4) drag.moved = true;
      if (!drag.moved) return;
      if (drag.brush) {
        const [a, b] = [this.time(Math.max(this.left, drag.x)), this.time(Math.max(this.left, x))];
        this.brush([Math.min(a, b), Math.max(a, b)]);
      } else {
        const by = (drag.x - x) / (this.wide - this.left) * (drag.view[1] - drag.view[0]);
        this.show(drag.view[0] + by, drag.view[1] - drag.view[0]);
      }
    });
    canvas.addEventListener("pointerup", (event) => {
      const [x, y] = place(event);
      if (drag && !drag.moved) {
        const { row, lane, place: at } = this.at(x, y);
        if (row && row.group !== undefined) this.fold(row.group);
        else if (lane && at !== null) this.choose(lane, at);
        else if (y < RULER) this.brush(null);
        else this.choose(null);
      }
      drag = null;
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("wheel", (event) => {
      const [x] = place(event);
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        this.zoom(Math.exp(event.deltaY * 0.004), this.time(Math.max(this.left, x)));
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        this.pan((event.deltaX || event.deltaY) / (this.wide - this.left));
      }
    }, { passive: false });
    canvas.addEventListener("dblclick", (event) => this.zoom(0.4, this.time(place(event)[0])));
    const keys = {
      w: () => this.zoom(0.7), s: () => this.zoom(1 / 0.7), a: () => this.pan(-0.15),
      d: () => this.pan(0.15), "+": () => this.zoom(0.7), "-": () => this.zoom(1 / 0.7),
      ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1),
      ArrowUp: () => this.stepLane(-1), ArrowDown: () => this.stepLane(1),
      0: () => this.whole(), b: () => this.brush([...this.view]), f: () => this.foldAll(),
      e: () => this.showEngines(),
      Escape: () => { this.choose(null); this.brush(null); },
      "/": () => this.root.querySelector("input").focus(),
      n: () => this.next(1), p: () => this.next(-1),
    };
    canvas.addEventListener("keydown", (event) => {
      const act = event.ctrlKey || event.metaKey || event.altKey ? null : keys[event.key];
      if (act) { event.preventDefault(); act(); }
    });
    const acts = {
      in: () => this.zoom(0.5), out: () => this.zoom(2), whole: () => this.whole(),
      earlier: () => this.pan(-0.5), later: () => this.pan(0.5), fold: () => this.foldAll(),
      brush: () => this.brush([...this.view]), clear: () => this.brush(null),
      next: () => this.next(1), engines: () => this.showEngines(),
    };
    for (const button of this.root.querySelectorAll("button")) {
      button.addEventListener("click", acts[button.dataset.act]);
    }
    const input = this.root.querySelector("input");
    input.addEventListener("input", () => this.search(input.value));
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") { event.preventDefault(); this.next(event.shiftKey ? -1 : 1); }
    });
    this.scroller.addEventListener("scroll", () => this.ask());
    addEventListener("resize", () => this.layOut());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.coloured());
  }

  fold(number) {
    if (this.open.has(number)) this.open.delete(number); else this.open.add(number);
    this.layOut();
  }
  showEngines() {
    const button = this.root.querySelector("[data-act=engines]");
    if (!button) return;
    this.engines = !this.engines;
    button.setAttribute("aria-pressed", this.engines);
    if (!this.engines && this.chosen && this.chosen.lane.engine) this.choose(null);
    this.layOut();
    this.search(this.root.querySelector("input").value);
  }
  foldAll() {
    const all = this.data.alike.flatMap((group, number) => group.length > 1 ? [number] : []);
    this.open = this.open.size ? new Set() : new Set(all);
    this.layOut();
  }
}

const timeText = (ps, digits = 4) => {
  const sign = ps < 0 ? "-" : "";
  let value = Math.abs(ps), place = 0;
  const units = ["ps", "ns", "us", "ms", "s"];
  while (value >= 1000 && place < units.length - 1) { value /= 1000; place += 1; }
  return `${sign}${Number(value.toPrecision(digits))} ${units[place]}`;
};

for (const root of document.querySelectorAll(".timeline")) {
  unpacked(root.querySelector("script").textContent.trim()).then(
    (data) => {
      root.timeline = new Timeline(root, data);
      root.classList.add("ready");
    },
    () => { root.querySelector(".chosen").textContent = "This browser cannot read the timeline."; },
  );
}
