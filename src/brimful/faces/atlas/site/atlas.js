// The page of an atlas. State is in the address (#model=...), tables are loaded when they are asked for.
"use strict";

var brimfulAtlas = (() => {
  const MIB = 1024 ** 2;
  const METHODS = { lora: "LoRA, rank 16", qlora: "QLoRA, rank 16, 4 bits", full: "Full fine-tuning" };
  const CHIPS = [["fits", "fits"], ["maybe", "may fit"], ["no", "does not fit"], ["", "unknown"]];
  const UNKNOWN = 3;
  const at = (id) => document.getElementById(id);
  const parts = new Map();
  let index = null;
  let state = {};
  let shown = [];
  let expected = "";

  // ---------------------------------------------------------------- numbers, written as brimful writes them

  function bytes(count) {
    let size = count;
    for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
      if (Math.abs(size) < 1024 || unit === "TiB") return `${size.toFixed(unit === "B" ? 0 : size >= 10 ? 1 : 2)} ${unit}`;
      size /= 1024;
    }
  }

  function duration(seconds) {
    const two = (number) => String(number).padStart(2, "0");
    if (Math.round(seconds * 1000) < 1000) return `${Math.round(seconds * 1000)} ms`;
    if (Math.round(seconds * 10) / 10 < 60) return `${seconds.toFixed(1)} s`;
    const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
    if (minutes < 60) return `${minutes}m ${two(whole % 60)}s`;
    const hours = Math.floor(minutes / 60);
    if (hours < 48) return `${hours}h ${two(minutes % 60)}m`;
    return `${Math.floor(hours / 24).toLocaleString("en")}d ${hours % 24}h`;
  }

  function money(usd) {
    if (usd && usd < 0.005) return "< $0.01";
    return usd >= 1000 ? `$${Math.round(usd).toLocaleString("en")}` : `$${usd.toFixed(2)}`;
  }

  function count(number) {
    for (const [limit, suffix] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
      if (number >= 0.99995 * limit) return (number / limit).toFixed(number >= 100 * limit ? 1 : 2) + suffix;
    }
    return number.toFixed(0);
  }

  const short = (number) => (number < 1e5 ? number.toLocaleString("en") : count(number).replace(/\.?0+(?=[A-Z])/, ""));
  const between = (form, low, high) => `${form(low)} to ${form(high)}`;

  // 10M, 2,048 or 1e9 as a whole number; null for anything else.
  function wholeNumber(text) {
    const found = /^(\d+(?:\.\d+)?(?:e\d\d?)?)([kmbt]?)$/.exec(String(text).toLowerCase().replace(/[\s,_]/g, ""));
    const value = found ? Number(found[1]) * { "": 1, k: 1e3, m: 1e6, b: 1e9, t: 1e12 }[found[2]] : 0;
    return Number.isInteger(value) && value >= 1 && value <= 1e18 ? value : null;
  }

  // Half to even, as Python rounds.
  function rounded(number) {
    const down = Math.floor(number), rest = number - down;
    if (rest !== 0.5) return Math.round(number);
    return down % 2 ? down + 1 : down;
  }

  // ---------------------------------------------------------------- rows

  const keyOf = ({ length, batch, tokens }) => `${length}/${batch}/${tokens}`;

  // The cells of a table; a name in its place is that of a table with the same cells.
  function tableOf(part, key) {
    const found = part.tables[key] || [];
    return typeof found === "string" ? part.tables[found] : found;
  }

  // What a question takes on each device, as plain values; null where unknown or where it does not fit.
  function rowsOf(part, state) {
    const table = tableOf(part, keyOf(state));
    const steps = Math.max(1, rounded(state.tokens / (state.length * state.batch)));
    return table.map((cell, place) => {
      const device = index.devices[place];
      const row = { device, verdict: UNKNOWN, reason: "", peak: null, step: null, training: null, cost: null, tokens_per_s: null };
      if (!Array.isArray(cell)) return { ...row, reason: part.reasons[cell] };
      const [verdict, peak, low, high, microBatch, accumulation, way, ...step] = cell;
      Object.assign(row, { verdict, microBatch, accumulation, peak: [peak, low, high].map((mib) => mib * MIB) });
      row.how = Object.fromEntries(index.how.map((name, number) => [name, part.ways[way][number]]));
      if (step.length) {
        row.step = step;
        row.training = step.map((seconds) => seconds * steps);
        row.tokens_per_s = step.map((seconds) => (state.length * state.batch) / seconds);
        if (device.usd_per_hour) row.cost = row.training.map((seconds) => (seconds / 3600) * device.usd_per_hour);
      }
      return row;
    });
  }

  const COLUMNS = {
    device: ["Device", (row) => row.device.name.toLowerCase()],
    verdict: ["Verdict", (row) => row.verdict],
    peak: ["Peak memory", (row) => (row.peak ? row.peak[0] / row.device.usable_bytes : null)],
    batch: ["Micro-batch", (row) => row.microBatch ?? null],
    step: ["Step", (row) => row.step && row.step[0]],
    speed: ["Tokens/s", (row) => row.tokens_per_s && -row.tokens_per_s[0]],
    training: ["Training", (row) => row.training && row.training[0]],
    cost: ["Cost", (row) => row.cost && row.cost[0]],
  };

  function sorted(rows) {
    const by = COLUMNS[state.sort] ? state.sort : "device";
    if (!COLUMNS[state.sort]) return rows;
    const value = COLUMNS[by][1], sign = state.down ? -1 : 1;
    const missing = (row) => value(row) === null || value(row) === undefined;
    return [...rows].sort((one, other) => {
      if (missing(one) || missing(other)) return Number(missing(one)) - Number(missing(other));
      return sign * (value(one) < value(other) ? -1 : value(one) > value(other) ? 1 : 0);
    });
  }

  function matching(rows) {
    const words = state.find.toLowerCase().split(/\s+/).filter(Boolean);
    return rows.filter((row) => {
      const name = `${row.device.name} ${row.device.short}`.toLowerCase();
      return words.every((word) => name.includes(word)) && (!state.fits || row.verdict === 0);
    });
  }

  // ---------------------------------------------------------------- drawing

  function element(name, content, attributes = {}) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    for (const each of [].concat(content ?? [])) made.append(each);
    return made;
  }

  const small = (text) => element("small", text);
  const chip = (verdict) => element("span", CHIPS[verdict][1], { class: `chip ${CHIPS[verdict][0]}` });

  function triple(values, form) {
    return values ? [form(values[0]), small(between(form, values[1], values[2]))] : ["-"];
  }

  function howText(how) {
    const words = [String(how.precision), how.recompute ? "activation checkpointing" : "", how.compile ? "compiled" : ""];
    return words.filter(Boolean).join(", ");
  }

  function memoryCell(row) {
    if (!row.peak) return [row.reason || "-"];
    const share = Math.min(1, row.peak[0] / row.device.usable_bytes);
    const bar = element("div", element("i", "", { style: `width:${(100 * share).toFixed(1)}%` }), {
      class: row.verdict === 2 ? "bar no" : "bar", "aria-hidden": "true",
    });
    return [`${bytes(row.peak[0])} of ${bytes(row.device.usable_bytes)}`, small(between(bytes, row.peak[1], row.peak[2])), bar];
  }

  function cells(row) {
    return {
      verdict: [chip(row.verdict)],
      peak: memoryCell(row),
      batch: row.microBatch ? [`${row.microBatch} x ${row.accumulation}`, small(howText(row.how))] : ["-"],
      step: triple(row.step, duration),
      speed: row.tokens_per_s ? [Math.round(row.tokens_per_s[0]).toLocaleString("en")] : ["-"],
      training: triple(row.training, duration),
      cost: row.cost ? triple(row.cost, money) : [row.training ? "no price known" : "-"],
    };
  }

  function drawHead() {
    const heads = Object.entries(COLUMNS).map(([key, [title]]) => {
      const head = element("th", element("button", title, { type: "button", "data-sort": key }), { scope: "col" });
      if (state.sort === key) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      return head;
    });
    at("devices").tHead.rows[0].replaceChildren(...heads);
  }

  function drawRow(row) {
    const isChosen = state.compare.includes(row.device.short);
    const box = element("input", "", { type: "checkbox", "data-compare": row.device.short });
    box.checked = isChosen;
    const title = element("th", element("label", [box, row.device.name], { title: "Tick two to compare them" }), { scope: "row" });
    const made = element("tr", title, { "data-device": row.device.short });
    if (isChosen) made.className = "chosen";
    for (const [key, content] of Object.entries(cells(row))) {
      const attributes = key === "verdict" ? {} : { "data-label": COLUMNS[key][0], class: row.peak || key !== "peak" ? "number" : "" };
      if (content[0] === "-") attributes.class += " nothing";
      made.append(element("td", content, attributes));
    }
    return made;
  }

  function drawComparison(rows) {
    const chosen = state.compare.map((name) => rows.find((row) => row.device.short === name)).filter(Boolean);
    at("comparison").hidden = chosen.length < 2;
    if (chosen.length < 2) return;
    const head = element("tr", [element("td"), ...chosen.map((row) => element("th", row.device.name, { scope: "col" }))]);
    const lines = Object.entries(COLUMNS).slice(1).map(([key, [title]]) =>
      element("tr", [element("th", title, { scope: "row" }), ...chosen.map((row) => element("td", cells(row)[key]))]));
    const price = element("tr", [element("th", "Price", { scope: "row" }), ...chosen.map(({ device }) =>
      element("td", device.usd_per_hour ? [`${money(device.usd_per_hour)} an hour`, small(device.price_of)] : ["no price known"]))]);
    at("comparison").replaceChildren(
      element("h3", "Compared"), element("div", element("table", [head, ...lines, price]), { class: "scroll" }));
  }

  // `LoRA of Llama 3.1 8B fits 31 of 59 devices: the smallest is ..., the cheapest ..., the fastest ...`
  function answerOf(rows) {
    const fitting = rows.filter((row) => row.verdict === 0);
    const least = (value, from = fitting) => from.filter((row) => value(row) !== null && value(row) !== undefined)
      .reduce((best, row) => (best === null || value(row) < value(best) ? row : best), null);
    if (!fitting.length) {
      const closest = least((row) => row.peak && row.peak[0], rows);
      return `Fits none of ${rows.length} devices as it is` +
        (closest ? `; it takes at least ${bytes(closest.peak[0])} (on ${closest.device.name}).` : ".");
    }
    const smallest = least((row) => row.device.usable_bytes);
    const cheapest = least((row) => row.cost && row.cost[0]), fastest = least((row) => row.training && row.training[0]);
    const words = [`Fits ${fitting.length} of ${rows.length} devices. Smallest: ${smallest.device.name} (${bytes(smallest.device.usable_bytes)})`];
    if (cheapest) {
      const which = cheapest === fastest ? "cheapest and fastest" : "cheapest";
      words.push(`${which}: ${cheapest.device.name} (${money(cheapest.cost[0])}, ${duration(cheapest.training[0])})`);
    }
    if (fastest && fastest !== cheapest) words.push(`fastest: ${fastest.device.name} (${duration(fastest.training[0])})`);
    return words.join("; ") + ".";
  }

  function recipeOf(part) {
    return part.recipe
      .replace(/^sequence_length: \d+$/m, `sequence_length: ${state.length}`)
      .replace(/^ {2}sequences: \d+$/m, `  sequences: ${state.batch}`)
      .replace(/^ {2}tokens: \d+$/m, `  tokens: ${state.tokens}`);
  }

  function drawRecipe(part) {
    const [, command] = at("recipe").querySelectorAll("code");
    at("recipe").querySelector("pre").textContent = recipeOf(part);
    const on = state.compare.length ? state.compare.join(",") : "all";
    command.textContent = `brimful plan recipe.yaml --on ${on}`;
  }

  function draw() {
    const part = parts.get(fileOf(state));
    if (!part) return;
    const key = keyOf(state), rows = rowsOf(part, state);
    at("title").textContent = `${part.title}, ${state.batch} x ${Number(state.length).toLocaleString("en")} tokens a step`;
    at("answer").textContent = part.left_out[key] ? `Cannot be planned: ${part.left_out[key]}` : answerOf(rows);
    shown = sorted(matching(rows));
    drawHead();
    at("devices").tBodies[0].replaceChildren(...shown.map(drawRow));
    at("none").hidden = shown.length > 0;
    drawComparison(rows);
    drawRecipe(part);
    document.title = `${part.title} - will it fit? - brimful atlas`;
  }

  // ---------------------------------------------------------------- state, controls, address

  const modelOf = (state) => index.models.find((model) => model.name === state.model);
  const fileOf = (state) => modelOf(state).files[state.method];

  function problem(text) {
    at("problem").hidden = !text;
    at("problem").textContent = text || "";
  }

  // A model by its name, the end of it, or words in it; undefined for none.
  function meant(text) {
    const wanted = text.trim().toLowerCase(), names = index.models.map((model) => model.name);
    return names.find((name) => name.toLowerCase() === wanted)
      || names.find((name) => name.toLowerCase().endsWith(`/${wanted}`))
      || names.find((name) => wanted && wanted.split(/\s+/).every((word) => name.toLowerCase().includes(word)));
  }

  function nearest(offered, wanted) {
    const below = offered.filter((number) => number <= wanted);
    return below.length ? below[below.length - 1] : offered[0];
  }

  // The state that an address asks for, with what is missing or not offered replaced.
  function stateOf(address) {
    const asked = new URLSearchParams(address.replace(/^#/, ""));
    const problems = [];
    const name = asked.get("model"), found = name ? meant(name) : index.models[0].name;
    if (!found) problems.push(`The atlas has no model ${name}.`);
    const model = index.models.find((each) => each.name === (found || index.models[0].name));
    const methods = Object.keys(model.files);
    const method = methods.includes(asked.get("method")) ? asked.get("method") : methods[0];
    if (asked.get("method") && asked.get("method") !== method) problems.push(`${model.name} has no method ${asked.get("method")} here.`);
    const length = offered("length", "sequence length", model.lengths, 2048);
    const batch = offered("batch", "sequences a step", index.batches, 16);
    const tokens = offered("tokens", "tokens to train on", index.tokens, 1e7);
    problem(problems.join(" "));
    return {
      model: model.name, method, length, batch, tokens,
      find: asked.get("find") || "", fits: asked.get("fits") === "1",
      sort: asked.get("sort") || "", down: asked.get("down") === "1",
      compare: (asked.get("compare") || "").split(",").filter(Boolean).slice(0, 3),
    };

    function offered(key, what, numbers, usual) {
      if (!asked.get(key)) return nearest(numbers, usual);
      const wanted = wholeNumber(asked.get(key));
      if (!numbers.includes(wanted)) problems.push(`The atlas has no ${what}: ${asked.get(key)}. It has ${numbers.map(short).join(", ")}.`);
      return numbers.includes(wanted) ? wanted : nearest(numbers, usual);
    }
  }

  function addressOf(state) {
    const words = [["model", state.model], ["method", state.method], ["length", state.length], ["batch", state.batch], ["tokens", state.tokens]];
    if (state.compare.length) words.push(["compare", state.compare.join(",")]);
    if (state.find) words.push(["find", state.find]);
    if (state.fits) words.push(["fits", 1]);
    if (state.sort) words.push(["sort", state.sort]);
    if (state.down) words.push(["down", 1]);
    return "#" + words.map(([key, value]) => `${key}=${encodeURIComponent(value).replace(/%2F/g, "/").replace(/%2C/g, ",")}`).join("&");
  }

  function options(select, values, value, name = (each) => each) {
    select.replaceChildren(...values.map((each) => element("option", String(name(each)), { value: each })));
    select.value = value;
  }

  function showControls() {
    const model = modelOf(state);
    if (document.activeElement !== at("model")) at("model").value = state.model;
    options(at("method"), Object.keys(model.files), state.method, (method) => METHODS[method] || method);
    options(at("length"), model.lengths, state.length, short);
    options(at("batch"), index.batches, state.batch);
    options(at("tokens"), index.tokens, state.tokens, short);
    if (document.activeElement !== at("find")) at("find").value = state.find;
    at("fits").checked = state.fits;
  }

  function change(changes) {
    state = { ...state, ...changes };
    history.replaceState(null, "", addressOf(state));
    state = stateOf(location.hash);
    refresh();
  }

  function refresh() {
    showControls();
    const file = fileOf(state);
    expected = file;
    if (parts.has(file)) return draw();
    at("answer").textContent = "Loading ...";
    const script = element("script", "", { src: file });
    script.onload = () => {
      script.remove();
      if (expected === file) draw();
    };
    script.onerror = () => {
      script.remove();
      if (expected !== file) return;
      at("answer").textContent = "";
      at("devices").tBodies[0].replaceChildren();
      problem(`The table ${file} cannot be read: it belongs beside this page. Write the atlas again, or fetch the file.`);
    };
    document.head.append(script);
  }

  // ---------------------------------------------------------------- downloads

  function plainRows() {
    return shown.map((row) => ({
      device: row.device.name, verdict: CHIPS[row.verdict][1], usable_bytes: row.device.usable_bytes,
      ...flat("peak_bytes", row.peak, Math.round),
      micro_batch: row.microBatch ?? null, accumulation: row.accumulation ?? null,
      precision: row.how ? row.how.precision : null, attention: row.how ? row.how.attention : null,
      recompute: row.how ? row.how.recompute : null, compile: row.how ? row.how.compile : null,
      ...flat("step_s", row.step), ...flat("training_s", row.training), ...flat("cost_usd", row.cost),
      usd_per_hour: row.device.usd_per_hour, reason: row.reason,
    }));
  }

  function flat(name, values, form = (value) => value) {
    const [value, low, high] = values ? values.map(form) : [null, null, null];
    return { [name]: value, [`${name}_low`]: low, [`${name}_high`]: high };
  }

  function csvOf(rows) {
    const quoted = (value) => {
      const text = value === null || value === undefined ? "" : String(value);
      return /[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
    };
    const names = Object.keys(rows[0] || {});
    return [names, ...rows.map((row) => names.map((name) => row[name]))].map((line) => line.map(quoted).join(",")).join("\n") + "\n";
  }

  function download(name, text, type) {
    const link = element("a", "", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  const fileName = (suffix) => `${state.model.split("/").pop()}-${state.method}-${state.batch}x${state.length}.${suffix}`.toLowerCase();

  function question() {
    const { model, method, length, batch, tokens } = state;
    return { model, method, sequence_length: length, sequences: batch, tokens, brimful: index.brimful, made: index.made };
  }

  // ---------------------------------------------------------------- events

  function listen() {
    at("question").addEventListener("submit", (event) => event.preventDefault());
    at("model").addEventListener("focus", () => at("model").select());
    at("model").addEventListener("change", () => {
      const found = meant(at("model").value);
      if (!found) return problem(`The atlas has no model ${at("model").value}. It has ${index.models.map((model) => model.name).join(", ")}.`);
      at("model").value = found;
      const model = index.models.find((each) => each.name === found);
      change({
        model: found,
        method: state.method in model.files ? state.method : Object.keys(model.files)[0],
        length: model.lengths.includes(state.length) ? state.length : nearest(model.lengths, state.length),
      });
    });
    for (const key of ["method", "length", "batch", "tokens"]) {
      at(key).addEventListener("change", () => change({ [key]: key === "method" ? at(key).value : Number(at(key).value) }));
    }
    at("find").addEventListener("input", () => change({ find: at("find").value.trim() }));
    at("fits").addEventListener("change", () => change({ fits: at("fits").checked }));
    at("devices").addEventListener("click", (event) => {
      const key = event.target.dataset ? event.target.dataset.sort : "";
      if (!key) return;
      change({ sort: key, down: state.sort === key && !state.down });
      at("devices").querySelector(`[data-sort="${key}"]`).focus();
    });
    at("devices").addEventListener("change", (event) => {
      const name = event.target.dataset.compare;
      if (!name) return;
      const rest = state.compare.filter((each) => each !== name);
      change({ compare: event.target.checked ? [...rest, name].slice(-3) : rest });
      at("devices").querySelector(`[data-compare="${CSS.escape(name)}"]`)?.focus();
    });
    at("csv").addEventListener("click", () => download(fileName("csv"), csvOf(plainRows()), "text/csv"));
    at("json").addEventListener("click", () =>
      download(fileName("json"), JSON.stringify({ question: question(), devices: plainRows() }, null, 2), "application/json"));
    at("link").addEventListener("click", async () => {
      await navigator.clipboard?.writeText(location.href).catch(() => {});
      at("link").textContent = navigator.clipboard ? "Copied" : "It is in the address bar";
      setTimeout(() => (at("link").textContent = "Copy link"), 2000);
    });
    addEventListener("hashchange", () => {
      state = stateOf(location.hash);
      refresh();
    });
  }

  return {
    index(value) {
      index = value;
      at("models").replaceChildren(...index.models.map((model) => element("option", "", { value: model.name })));
      const libraries = Object.entries(index.libraries).map(([name, version]) => `${name} ${version}`).join(", ");
      at("made").textContent = `${index.models.length} models, ${index.devices.length} devices. Made on ${index.made} by brimful ${index.brimful} with ${libraries}.`;
      state = stateOf(location.hash);
      listen();
      refresh();
    },
    tables(value) {
      parts.set(index.models.find((model) => model.name === value.model).files[value.method], value);
    },
  };
})();
