// Interventions: the list of a run's, toggles while it is live, and the form that adds one.
(function (S) {
  "use strict";
  S.planned = []; // what the next run starts with: what this page was told
  S.told = []; // what the run tells of
  let sent = null; // a list that has not taken effect yet, and what held when it was sent
  const engineOf = (answer) => answer && answer.engine && answer.engine.run === answer.run && ["running", "paused", "ended"].includes(answer.engine.state) ? answer.engine : null;
  const number = (value) => typeof value === "string" ? value : JSON.stringify(value);
  const entry = (raw) => ({ raw, kind: raw.kind, site: raw.site || "", layers: raw.layers, tokens: raw.tokens || "", strength: raw.strength, on: raw.on,
    options: Object.entries(raw.options || {}).map(([key, value]) => `${key}=${number(value)}`).join(",") });
  const command = (one) => {
    if (one.raw) return { ...one.raw, strength: one.strength, on: one.on };
    const parts = ["site", "layers", "tokens"].filter((key) => one[key]).map((key) => `${key}=${one[key]}`);
    if (one.strength !== 1) parts.push(`strength=${one.strength}`);
    if (!one.on) parts.push("on=false");
    if (one.options) parts.push(one.options);
    return parts.length ? `${one.kind}:${parts.join(",")}` : one.kind;
  };
  const holds = () => {
    const engine = engineOf(S.answer);
    if (!engine) return S.planned;
    return sent && sent.before === JSON.stringify(engine.interventions) ? sent.list : engine.interventions.map(entry);
  };
  const same = (one, other) => ["kind", "site", "layers", "tokens", "options"].every((key) => (one[key] || "") === (other[key] || ""));

  const tell = (message, bad) => { const at = S.$("iv-note"); if (at) { at.textContent = message; at.classList.toggle("bad", Boolean(bad)); } };
  // the engine is told the whole list; without a run it is kept for the next one
  const change = async (list) => {
    const engine = engineOf(S.answer);
    if (engine) {
      sent = { list, before: JSON.stringify(engine.interventions) };
      const answer = await S.tryPost("command", { tab: S.tab, command: { kind: "set", changes: { interventions: list.map(command) } } });
      if (answer.error) { sent = null; tell(answer.error, true); S.listInterventions(true); S.soon(); return false; }
      tell(engine.state === "paused" ? "From the next step on." : engine.state === "ended" ? "From the next branch on." : "");
    } else tell(list.length ? "The next run starts with these." : "");
    S.planned = list;
    S.listInterventions(true);
    S.soon();
    return true;
  };

  const words = (one) => [one.site && `site ${one.site}`, `layers ${one.layers || "all"}`, one.tokens && `tokens ${one.tokens}`, one.options].filter(Boolean).join(" · ");
  const row = (one, i, steer) => {
    const known = (!steer || engineOf(S.answer)) && S.told.find((other) => same(one, other)) || {}, name = known.label || one.label || one.kind;
    const told = known.rows ? `changed ${known.rows.toLocaleString()} ${known.rows === 1 ? "row" : "rows"}: ${known.where}` : engineOf(S.answer) ? "has changed no row" : "";
    const state = steer ? S.el("button", { class: "switch", role: "switch", "aria-checked": one.on ? "true" : "false", "data-iv": i, "aria-label": `${name} on` })
      : S.el("span", { class: "state", text: one.on ? "on" : "off", title: "when the run ended" });
    const strength = steer ? S.el("label", { class: "pick" }, "strength", S.el("input", { type: "number", step: "0.1", value: one.strength, "data-iv": i, class: "iv-strength", "aria-label": `Strength of ${name}` }))
      : S.el("span", { class: "note", text: `strength ${one.strength}` });
    const gone = steer ? [S.el("button", { class: "quiet iv-remove", "data-iv": i, text: "×", "aria-label": `Remove ${name}` })] : [];
    return S.el("li", { class: one.on ? "" : "off" }, state, S.el("span", { class: "iv-what" }, S.el("b", { text: name }), ` ${words(one)}`), strength, S.el("span", { class: "note iv-where", text: told, title: told }), ...gone);
  };
  S.listInterventions = (anew) => {
    const list = S.$("interventions-list"), answer = S.answer || {};
    if (!list) return;
    const chip = S.$("planned"), count = S.planned.filter((one) => one.on).length;
    if (chip) { chip.hidden = !count; chip.textContent = `with ${count} ${count === 1 ? "intervention" : "interventions"}`; }
    if (S.$("interventions-tools").hidden) return;
    const mine = Boolean(S.$("iv-form")) && answer.control !== "other", now = Boolean(engineOf(answer));
    // of a run that is over, what held; below it what the next run starts with
    const shown = mine ? holds() : [], over = mine && now ? [] : S.told;
    const key = JSON.stringify([shown.map((one) => [command(one), one.on]), S.told, mine, now]);
    if (!anew && list.dataset.key === key) return;
    if (list.contains(document.activeElement) && document.activeElement.tagName === "INPUT" && !anew) return;
    const focus = list.contains(document.activeElement) ? [document.activeElement.className.split(" ")[0], document.activeElement.dataset.iv] : null;
    list.dataset.key = key;
    const head = over.length && shown.length ? [S.el("li", { class: "iv-next" }, S.el("h3", { text: "The next run starts with" }))] : [];
    list.replaceChildren(...over.map((one) => row(one, -1, false)), ...head, ...shown.map((one, i) => row(one, i, true)));
    if (focus) list.querySelector(`.${focus[0]}[data-iv="${focus[1]}"]`)?.focus();
  };
  S.drawInterventions = (figure) => { S.told = (figure.layout.meta || {}).interventions || []; S.listInterventions(); };

  const changed = (i, facts) => change(holds().map((one, j) => (j === i ? { ...one, ...facts } : one)));
  const add = async () => {
    const value = (id) => S.$(`iv-${id}`).value.trim();
    const made = { raw: null, kind: value("kind"), site: value("site"), layers: value("layers"), tokens: value("tokens"), options: value("options"),
      strength: value("strength") === "" ? 1 : Number(value("strength")), on: true };
    if (await change([...holds(), made])) S.$("iv-add").focus();
  };
  const example = () => {
    const form = S.$("iv-form");
    if (!form) return;
    const all = Object.fromEntries(form.dataset.examples.split(";").map((one) => [one.split(":")[0], one.slice(one.indexOf(":") + 1)]));
    S.$("iv-options").placeholder = all[S.$("iv-kind").value] || "name=value,…";
  };
  document.addEventListener("click", (event) => {
    const at = event.target.closest("button");
    if (!at) return;
    if (at.id === "iv-add") add();
    else if (at.id === "planned") { if (S.look.view === "simple") S.$("view").click(); S.$("tab-interventions").click(); }
    else if (at.classList.contains("switch")) changed(Number(at.dataset.iv), { on: at.getAttribute("aria-checked") !== "true" });
    else if (at.classList.contains("iv-remove")) change(holds().filter((_, i) => i !== Number(at.dataset.iv)));
  });
  document.addEventListener("change", (event) => {
    const at = event.target;
    if (at.id === "iv-kind") example();
    else if (at.classList.contains("iv-strength") && at.value !== "") changed(Number(at.dataset.iv), { strength: Number(at.value) });
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.target.closest("#iv-form") && event.target.tagName === "INPUT") { event.preventDefault(); add(); } });
  // settings of a start
  S.interventionSettings = () => ({ interventions: S.planned.map(command), measure: Boolean(S.$("measure") && S.$("measure").checked) });
  S.refusedStart = (message) => { if (S.planned.length) tell(message, true); };
})(window.sotscope);
