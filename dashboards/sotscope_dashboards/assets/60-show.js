// An answer on the screen: bar, banner, text, panels, scrubber.
(function (S) {
  "use strict";
  const text = (id, value) => { const at = S.$(id); if (at && at.textContent !== value) at.textContent = value; };
  S.banner = (message) => { const at = S.$("banner"); at.textContent = message; at.hidden = !message; };

  S.show = (answer) => {
    S.answer = answer;
    // a server that was started anew has no run open: go on looking at the one on disk
    if (S.lost && !answer.run && !S.look.run) S.set({ run: S.lost });
    S.lost = "";
    const engine = answer.engine;
    const dead = engine && engine.state === "dead" ? engine.text : "";
    S.banner(dead || (!answer.run && answer.why && S.look.run ? answer.why : ""));
    bar(answer);
    if (answer.frame) {
      const run = answer.run, seq = answer.seq;
      const anew = S.takeHealth(answer.health) || S.redraw; S.redraw = false;
      S.take(answer.frame, run, seq);
      S.drawText(anew);
    } else if (S.state.tokens.length || S.state.run) {
      S.state = { tokens: [], first: 0, run: "", seq: 0 };
      S.takeHealth(null);
      S.$("text").replaceChildren();
      text("text-note", answer.why);
    } else text("text-note", answer.why);
    S.drawPanels(answer.panels);
    scrubber(answer);
    sequences(answer);
    S.followRecovery(answer);
    S.drawNews(answer);
    S.listInterventions();
    S.$("watch").classList.toggle("blank", !answer.run);
  };

  const bar = (answer) => {
    const engine = answer.engine, numbers = answer.numbers || {}, state = engine ? engine.state : "";
    const say = (name, value) => text(`n-${name}`, value);
    text("run-name", [answer.model || (engine && engine.model), answer.name && answer.name.replace(/\.sot$/, "")].filter(Boolean).join(" · "));
    const fixed = (value, digits) => value === undefined || value === null ? "–" : value.toFixed(digits);
    say("tokens_per_s", fixed(numbers.tokens_per_s, 1));
    say("tokens_per_forward", fixed(numbers.tokens_per_forward, 2));
    say("latency", numbers.p50 === undefined ? "–" : [numbers.p50, numbers.p95, numbers.p99].map((v) => v.toFixed(0)).join(" · "));
    say("memory_mb", numbers.memory_mb ? `${(numbers.memory_mb / 1000).toFixed(2)} GB` : "–");
    say("alarms", numbers.alarms ? `▲ ${numbers.alarms}` : numbers.alarms === 0 ? "0" : "–");
    S.$("box-alarms").classList.toggle("alarm", Boolean(numbers.alarms));
    const aged = numbers.age_ms !== undefined && state !== "paused" && state !== "ended";
    say("age_ms", !answer.run ? "–" : !aged ? (numbers.age_ms === undefined ? answer.state : state)
      : numbers.age_ms < 2000 ? `${numbers.age_ms} ms` : `${(numbers.age_ms / 1000).toFixed(0)} s`);
    text("unit-age_ms", aged ? "data age" : "run");
    const start = S.$("start");
    if (!start) return;
    const mine = answer.control !== "other", busy = ["starting", "preparing"].includes(state);
    const watching = engine && engine.run && answer.run && engine.run !== answer.run;
    const verb = !mine ? "Take over" : busy ? "Loading …" : state === "running" && !watching ? "❚❚ Pause" : state === "paused" && !watching ? "▶ Resume" : "▶ Start";
    text("start", verb);
    start.disabled = busy && mine;
    for (const again of document.querySelectorAll(".begin")) { again.textContent = verb; again.disabled = start.disabled; }
    start.dataset.does = !mine ? "take" : state === "running" && !watching ? "pause" : state === "paused" && !watching ? "resume" : "start";
    S.$("step").disabled = !mine || busy;
    S.$("stop").disabled = !mine || !["running", "paused", "ended"].includes(state);
    const asked = S.wanted && S.wanted.mode, now = engine && engine.settings && engine.settings.mode;
    if (asked === now) S.wanted = null;
    for (const button of document.querySelectorAll(".mode")) {
      const mode = button.dataset.mode, has = !engine || !engine.modes.length || engine.modes.includes(mode);
      const on = mode === (asked || (["running", "paused", "ended"].includes(state) ? now : S.mode || "ar"));
      button.setAttribute("aria-checked", on ? "true" : "false");
      button.classList.toggle("waiting", Boolean(asked) && mode === asked && asked !== now);
      button.disabled = !mine || !has;
      button.title = has ? "" : `no trained ${mode} drafter for ${engine.model}`;
    }
    const note = S.$("prompt-note");
    const doing = engine ? engine.text : "";
    if (note) text("prompt-note", S.refusal || (doing && doing[0].toUpperCase() + doing.slice(1)));
    S.$("prompt-note")?.classList.toggle("bad", Boolean(S.refusal));
  };

  const scrubber = (answer) => {
    const scrub = S.$("scrub");
    if (!scrub) return;
    const total = answer.total || 0, at = S.cursor();
    scrub.max = Math.max(0, total - 1);
    if (document.activeElement !== scrub || S.following) scrub.value = at;
    scrub.disabled = !total;
    const span = total ? `${(100 * at) / Math.max(1, total - 1)}%` : "0%";
    scrub.style.setProperty("--done", span);
    const recording = answer.state === "recording";
    const follow = S.$("follow");
    const newest = S.following && S.look.cursor === null, held = answer.engine && answer.engine.state === "paused" && answer.engine.run === answer.run;
    text("follow", `${newest ? "●" : "○"} ${recording ? "Follow" : "Newest"}`);
    follow.setAttribute("aria-pressed", newest ? "true" : "false");
    text("when", !total ? "" : recording && held ? "paused" : recording && newest ? "live" : "replay");
    text("place", total ? `token ${at.toLocaleString()} / ${(total - 1).toLocaleString()}` : "no tokens");
    const marks = (answer.overview || { marks: [] }).marks;
    S.$("marks").replaceChildren(...marks.map((mark) => {
      const made = S.el("i", { class: mark.kind, title: `${mark.kind} at token ${mark.at}` });
      made.style.left = `${(100 * mark.at) / Math.max(1, total - 1)}%`;
      return made;
    }));
    const layers = answer.layers || [];
    const pick = S.$("layer");
    pick.closest("label").hidden = !layers.length;
    if (pick.dataset.key !== layers.join()) {
      pick.dataset.key = layers.join();
      pick.replaceChildren(...layers.map((k) => S.el("option", { value: k, text: k })));
    }
    pick.value = answer.layer;
    const sites = answer.sites || [], site = S.$("site");
    if (site.dataset.key !== sites.join()) {
      site.dataset.key = sites.join();
      site.replaceChildren(...["", ...sites.filter((name) => name !== "resid")].map((name) => S.el("option", { value: name, text: name || "resid" })));
      site.value = S.look.site;
    }
    S.$("low").placeholder = layers.length ? layers[0] : ""; S.$("high").placeholder = layers.length ? layers[layers.length - 1] : "";
  };

  const sequences = (answer) => {
    const pick = S.$("sequence");
    if (!pick) return;
    const all = answer.sequences || [];
    pick.closest("label").hidden = all.length < 2;
    const key = all.map((s) => `${s.seq_id}/${s.parent}/${s.parent_pos}/${s.heir}`).join();
    if (pick.dataset.key !== key) {
      pick.dataset.key = key;
      pick.replaceChildren(...all.map((s) => S.el("option", { value: s.seq_id,
        text: s.parent < 0 ? `sequence ${s.seq_id}` : all[s.parent] && all[s.parent].heir === s.seq_id ? `recovery ${s.seq_id}, of ${s.parent} at token ${s.parent_pos + 1}` : `branch ${s.seq_id}, of ${s.parent} at token ${s.parent_pos}` })));
    }
    pick.value = answer.seq;
  };
  // a branch is read beside what it left
  S.beside = async (answer) => {
    const other = S.$("other-text"), own = (answer.sequences || []).find((s) => s.seq_id === answer.seq);
    const left = own && (answer.sequences || []).find((s) => s.seq_id === own.parent);
    // what a recovery took back stands struck through in the text itself
    if (!left || left.heir === own.seq_id) { other.hidden = true; other.dataset.key = ""; return; }
    const key = `${answer.run}/${own.parent}/${own.parent_pos}/${answer.layer}`;
    if (other.dataset.key === key) return;
    other.dataset.key = key;
    const look = { run: answer.run, seq: own.parent, start: Math.max(0, own.parent_pos - 1), stop: own.parent_pos + 200, theme: S.theme() };
    const found = await S.post("look", { tab: S.tab + "-b", look, wants: [] });
    if (!found.frame) return;
    const words = S.visible(found.frame.labels.slice(own.parent_pos - found.frame.start).join("").replaceAll("␣", " ").replaceAll("⏎", "\n"));
    other.replaceChildren(S.el("h3", { text: `Sequence ${own.parent} went on from token ${own.parent_pos}:` }), S.el("p", { text: words }));
    other.hidden = false;
  };
})(window.sotscope);
