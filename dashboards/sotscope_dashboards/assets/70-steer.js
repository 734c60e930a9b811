// What the hand does: buttons, cursor, keys, tabs, exports.
(function (S) {
  "use strict";
  const KEYS = [["space", "pause or resume"], ["← →", "cursor to the token before, after (Shift: ten)"], ["Home", "first token"],
    ["[ ]", "layer below, above"], ["L", "follow the newest tokens"], ["S", "one step"], ["V", "simple or full view"], ["?", "these keys"]];

  const send = async (command) => {
    const answer = await S.tryPost("command", { tab: S.tab, command });
    S.refusal = answer.error || "";
    if (answer.error) S.wanted = null;
    S.soon();
    return !answer.error;
  };
  S.send = send;
  const number = (id) => { const at = S.$(id); return at && at.value !== "" ? Number(at.value) : null; };
  const decode = () => {
    const found = { mode: S.mode || "ar", max_new_tokens: number("max-new-tokens") || 96, policy: S.$("policy").value };
    const temperature = number("temperature");
    Object.assign(found, temperature > 0 ? { do_sample: true, temperature } : { do_sample: false });
    if (number("window") !== null && found.mode !== "ar") found.window = number("window");
    if (number("entropy-gate") !== null) found.gates = { entropy: { threshold: number("entropy-gate") } };
    return found;
  };
  const begin = async (paused) => {
    S.set({ run: "", seq: null, start: null, stop: null, cursor: null });
    const settings = { input: { prompt: S.$("prompt").value }, decode: decode(), capture: { sites: ["resid", "head_out", "final"] },
      health: S.healthSettings(), ...S.interventionSettings() };
    const done = await send({ kind: "start", paused, delay_ms: number("delay") || 0, settings });
    if (!done) S.refusedStart(S.refusal);
    return done;
  };
  const press = async () => {
    const does = S.$("start").dataset.does;
    if (does === "start") return begin(false);
    return send({ kind: does });
  };
  const step = () => {
    const state = S.answer && S.answer.engine && S.answer.engine.state;
    return ["running", "paused"].includes(state) ? send({ kind: "step" }) : begin(true);
  };
  const mode = (name) => {
    S.mode = name;
    const state = S.answer && S.answer.engine && S.answer.engine.state;
    if (!["running", "paused", "ended"].includes(state)) { S.soon(); return; }
    S.wanted = { mode: name };
    send({ kind: "set", changes: { mode: name } });
  };
  const change = (id) => {
    const state = S.answer && S.answer.engine && S.answer.engine.state;
    if (id === "delay") return send({ kind: "pace", delay_ms: number("delay") || 0 });
    if (!["running", "paused"].includes(state)) return null;
    const temperature = number("temperature"), changes = {
      temperature: temperature > 0 ? { do_sample: true, temperature } : { do_sample: false, temperature: null },
      window: { window: number("window") }, policy: { policy: S.$("policy").value },
      "entropy-gate": { gates: number("entropy-gate") === null ? {} : { entropy: { threshold: number("entropy-gate") } } } }[id];
    return changes ? send({ kind: "set", changes }) : null;
  };

  S.goTo = (at, more) => {
    const total = (S.answer && S.answer.total) || 0;
    if (!total) return;
    const cursor = Math.max(0, Math.min(total - 1, at)), changes = { cursor, ...more };
    // a cursor that leaves the view takes the view with it
    const { start, stop } = S.answer;
    if (cursor < start || cursor >= stop) {
      const half = Math.min(512, stop - start || 512) >> 1;
      changes.start = Math.max(0, cursor - half); changes.stop = changes.start + 2 * half;
    }
    S.set(changes);
    S.drawCursor();
  };
  const follow = S.follow = () => S.set({ start: null, stop: null, cursor: null });
  // the text is asked for anew: its norms are those of the layer
  const toLayer = (number) => { S.set({ layer: number }); S.redraw = true; S.state.run = ""; };
  const layer = (by) => {
    const layers = (S.answer && S.answer.layers) || [], at = layers.indexOf(S.answer && S.answer.layer);
    if (at >= 0) toLayer(layers[Math.max(0, Math.min(layers.length - 1, at + by))]);
  };
  const view = (name) => {
    S.set({ view: name });
    document.querySelector("main.watch").classList.toggle("simple", name === "simple");
    S.$("view").textContent = name === "simple" ? "Full view" : "Simple view";
    S.$("view").setAttribute("aria-pressed", name === "full" ? "true" : "false");
    if (name === "simple") tab("words"); else tab(S.look.tab);
    S.have = {};
    window.dispatchEvent(new Event("resize"));
  };
  const tab = (name) => {
    if (S.look.view === "full") S.set({ tab: name });
    for (const button of document.querySelectorAll(".view-tab")) {
      const on = button.dataset.tab === name;
      button.setAttribute("aria-selected", on ? "true" : "false");
      button.tabIndex = on ? 0 : -1;
      S.$(`help-${button.dataset.tab}`).hidden = !on;
      if (on) {
        S.$("body-words").hidden = button.dataset.kind !== "list";
        S.$("body-figure").hidden = button.dataset.kind !== "figure";
        S.$("body-grid").hidden = button.dataset.kind !== "grid";
        document.querySelector("#tabs-card .csv").dataset.panel = name;
      }
    }
    S.$("projection-tools").hidden = name !== "projection";
    S.$("interventions-tools").hidden = name !== "interventions";
    S.$("tab-note").textContent = "";
    delete S.have[name];
    S.soon();
  };

  const csv = (panel) => {
    const look = encodeURIComponent(JSON.stringify(S.asked()));
    location.assign(`${S.base()}api/csv?panel=${panel}&look=${look}`);
  };

  // -- wiring ----------------------------------------------------------------------------------------------------
  S.mount = () => {
    S.bind("graph-states"); S.bind("graph-tab");
    const watch = S.$("watch");
    if (watch.dataset.mounted) return;
    watch.dataset.mounted = "yes";
    S.read();
    S.state = { tokens: [], first: 0, run: "", seq: 0 }; S.have = {};
    for (const name of ["colour", "scalar", "site"]) S.$(name).value = S.look[name];
    S.$("refused").setAttribute("aria-pressed", S.look.refused ? "true" : "false");
    for (const name of ["low", "high"]) if (S.look[name] !== null) S.$(name).value = S.look[name];
    view(S.look.view);
  };
  document.addEventListener("click", (event) => {
    for (const open of document.querySelectorAll(".help[open]")) if (!open.contains(event.target)) open.open = false;
    const at = event.target.closest("button, .token, td[data-at], th[data-at]");
    if (!at) return;
    if (at.id === "start") press();
    else if (at.classList.contains("begin")) S.$("start").click();
    else if (at.id === "step") step();
    else if (at.id === "stop") send({ kind: "stop" });
    else if (at.classList.contains("mode")) mode(at.dataset.mode);
    else if (at.id === "view") view(S.look.view === "simple" ? "full" : "simple");
    else if (at.id === "theme") S.setTheme(S.theme() === "dark" ? "light" : "dark");
    else if (at.id === "keys") keys();
    else if (at.id === "keys-close") S.$("keys-dialog").close();
    else if (at.id === "follow") follow();
    else if (at.id === "refused") {
      S.set({ refused: !S.look.refused }); S.redraw = true;
      at.setAttribute("aria-pressed", S.look.refused ? "true" : "false");
    } else if (at.classList.contains("view-tab")) tab(at.dataset.tab);
    else if (at.classList.contains("csv")) csv(at.dataset.panel);
    else if (at.classList.contains("job")) S.lay({ do: "start", method: at.dataset.method });
    else if (at.id === "job-cancel") S.lay({ do: "cancel" });
    else if (at.id === "job-clear") { S.lay({ do: "cancel" }); delete S.have.projection; }
    else if (at.classList.contains("candidate")) branch(at);
    else if (at.dataset.at !== undefined) S.goTo(Number(at.dataset.at));
  });
  const branch = async (at) => {
    const engine = S.answer.engine;
    if (!engine || engine.run !== S.answer.run) { S.refusal = "Only the run that the engine has open can be branched; press Start."; S.soon(); return; }
    const pos = Number(at.dataset.at) + 1, seq = S.answer.seq;
    if (await send({ kind: "branch", seq, pos, token: Number(at.dataset.token) })) {
      const next = S.answer.sequences.length;
      S.set({ seq: next, start: null, stop: null, cursor: null });
    }
  };
  document.addEventListener("change", (event) => {
    const id = event.target.id;
    if (id === "colour" || id === "scalar" || id === "site") { S.set({ [id]: event.target.value }); S.redraw = true; }
    else if (id === "sequence") S.set({ seq: Number(event.target.value), cursor: null, start: null, stop: null });
    else if (id === "layer") toLayer(Number(event.target.value));
    else if (id === "low" || id === "high") S.set({ [id]: number(id) });
    else change(id);
  });
  document.addEventListener("input", (event) => { if (event.target.id === "scrub") S.goTo(Number(event.target.value)); });
  const keys = () => {
    S.$("key-list").replaceChildren(...KEYS.flatMap(([key, text]) => [S.el("dt", {}, S.el("kbd", { text: key })), S.el("dd", { text })]));
    S.$("keys-dialog").showModal();
  };
  document.addEventListener("keydown", (event) => {
    const target = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey || !S.$("watch")) return;
    if (target.closest("textarea, select, dialog, .ag-root") || (target.tagName === "INPUT" && target.type !== "range")) return;
    if (target.getAttribute("role") === "tab" && ["ArrowLeft", "ArrowRight"].includes(event.key)) {
      const all = [...document.querySelectorAll(".view-tab")], i = all.indexOf(target) + (event.key === "ArrowRight" ? 1 : -1);
      const next = all[(i + all.length) % all.length];
      next.focus(); tab(next.dataset.tab); event.preventDefault(); return;
    }
    const far = event.shiftKey ? 10 : 1, at = S.cursor();
    const done = {
      ArrowLeft: () => S.goTo(at - far), ArrowRight: () => S.goTo(at + far), Home: () => S.goTo(0), End: follow,
      "[": () => layer(-1), "]": () => layer(1), l: follow, L: follow, "?": keys, v: () => S.$("view").click(), V: () => S.$("view").click(),
      s: () => S.$("step") && !S.$("step").disabled && step(), S: () => S.$("step") && !S.$("step").disabled && step(),
      " ": () => { if (target.tagName === "BUTTON" || target.tagName === "SUMMARY") return false; const b = S.$("start"); if (b && !b.disabled) press(); return true; },
    }[event.key];
    if (done && done() !== false) event.preventDefault();
  });
  window.addEventListener("pagehide", () => {
    const body = JSON.stringify({ tab: S.tab, command: { kind: "leave" } });
    if (S.answer && S.answer.control === "you") navigator.sendBeacon(S.base() + "api/command", new Blob([body], { type: "application/json" }));
  });
  S.setTheme = (name) => {
    document.documentElement.dataset.theme = name;
    try { localStorage.setItem("sotscope-theme", name); } catch { /* private mode */ }
    S.have = {}; S.soon();
    document.dispatchEvent(new CustomEvent("sotscope-theme"));
  };
  try { const kept = localStorage.getItem("sotscope-theme"); if (kept) document.documentElement.dataset.theme = kept; } catch { /* private mode */ }
  const ready = () => (S.$("config") && window.dash_clientside && window.dash_clientside.set_props ? S.loop() : setTimeout(ready, 30));
  ready();
})(window.sotscope);
