// Health: the news above the page, waves below alarmed tokens, what recoveries took back, and the ways to recover.
(function (S) {
  "use strict";
  const NONE = { alarms: [], joints: [], news: null }, SHORT = 12;
  S.health = NONE;
  const opened = new Set();
  const live = (answer) => answer.engine && answer.engine.run === answer.run && answer.engine.seq === answer.seq
    && answer.control !== "other" && ["running", "paused"].includes(answer.engine.state);

  // whether the text must be drawn anew
  S.takeHealth = (found) => {
    if (found && !found.alarms) return false; // as this tab has it
    S.health = found || NONE;
    S.have.health = found ? found.key : undefined;
    return true;
  };
  S.alarmAt = (at) => {
    let worst = null;
    for (const one of S.health.alarms) {
      if (one.onset <= at && (one.end === null || at <= one.end) && (!worst || one.severity === "critical")) worst = one;
    }
    return worst;
  };
  S.jointsAt = (at) => S.health.joints.filter((one) => one.at === at && one.tokens);
  S.drawJoint = (one) => {
    const words = one.text.replaceAll("␣", " ").replaceAll("⇥", "\t").replaceAll("⏎", "↵");
    const sign = S.el("span", { class: "sign", text: "↺", "aria-label": "taken back:" });
    if (one.tokens <= SHORT) return S.el("span", { class: "retracted", title: `${one.said}. ${one.action}` }, sign, " ", S.el("s", { text: words }), " ");
    const count = `${one.tokens.toLocaleString()} tokens taken back: `;
    return S.el("details", { class: "retracted", "data-joint": one.order, open: opened.has(one.order) },
      S.el("summary", { title: `${one.said}. ${one.action}` }, sign, ` ${count}`, S.el("s", { text: words.replace(/^[↵ ]+/, "").slice(0, 60).trim() + "…" })),
      S.el("p", { class: "note", text: `${one.said}. ${one.policy}: ${one.action}.` }),
      S.el("p", {}, S.el("s", { text: one.text.replaceAll("␣", " ").replaceAll("⇥", "\t").replaceAll("⏎", "\n").trim() })));
  };
  document.addEventListener("toggle", (event) => {
    const at = event.target;
    if (!at.classList || !at.classList.contains("retracted")) return;
    if (at.open) opened.add(Number(at.dataset.joint)); else opened.delete(Number(at.dataset.joint));
  }, true);

  // a sequence that this tab chose and that was rolled back is left for the one that goes on
  let watched = "";
  S.followRecovery = (answer) => {
    const own = (answer.sequences || []).find((one) => one.seq_id === answer.seq), key = `${answer.run}/${answer.seq}`;
    const was = watched === key;
    watched = own && (own.finish === "open" || (was && own.heir < 0)) ? key : "";
    if (was && own && own.heir >= 0 && S.look.seq !== null) S.set({ seq: own.heir, start: null, stop: null, cursor: null });
  };

  S.drawNews = (answer) => {
    const box = S.$("news"), found = answer.run ? S.health.news : null, key = found ? `${answer.run}/${found.order}` : "";
    const on = Boolean(live(answer)), shown = Boolean(found) && S.dismissed !== key;
    for (const id of ["news-recover", "news-ways", "text-ways"]) {
      const at = S.$(id);
      if (at) at.hidden = !on;
      if (at && !on && at.open) at.open = false;
    }
    box.hidden = !shown;
    if (!shown) return;
    box.dataset.key = key;
    box.dataset.at = found.at;
    S.$("news-show").hidden = found.at === null;
    box.className = `news ${found.kind} ${found.severity}`;
    for (const [id, text] of [["news-title", found.title], ["news-text", found.text]]) if (S.$(id).textContent !== text) S.$(id).textContent = text;
    if (found.kind !== "alarm") for (const id of ["news-recover", "news-ways"]) S.$(id).hidden = true;
  };

  document.addEventListener("click", (event) => {
    for (const open of document.querySelectorAll(".menu[open]")) if (!open.contains(event.target)) open.open = false;
    const at = event.target.closest("button");
    if (!at) return;
    if (at.classList.contains("recover")) {
      const menu = at.closest(".menu");
      if (menu) menu.open = false;
      S.send({ kind: "recover", policy: at.dataset.policy });
    } else if (at.id === "news-close") { S.dismissed = S.$("news").dataset.key; S.$("news").hidden = true; }
    else if (at.id === "news-show") S.goTo(Number(S.$("news").dataset.at));
  });
  document.addEventListener("keydown", (event) => {
    const open = event.key === "Escape" && event.target.closest && event.target.closest(".menu[open]");
    if (open) { open.open = false; open.querySelector("summary").focus(); }
  });
  // settings of a start
  S.healthSettings = () => {
    const way = S.$("recover-with").value;
    return { monitor: S.$("watch-health").checked, recover: way ? { [way]: {} } : {} };
  };
})(window.sotscope);
