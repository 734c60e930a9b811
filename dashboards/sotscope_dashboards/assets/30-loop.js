// The one request of a tab: asked again when its answer is on the screen, never while the tab is hidden.
(function (S) {
  "use strict";
  const PAUSE = 180, IDLE = 600, LOST = 1500, SLOW = 4000, HUNG = 60000;
  S.state = { tokens: [], first: 0, run: "", seq: 0 };
  S.have = {};
  let wake = null;
  S.soon = () => { if (wake) wake(); };
  const sleep = (ms) => new Promise((done) => { wake = done; setTimeout(done, ms); }).then(() => { wake = null; });
  const visible = () => document.hidden
    ? new Promise((done) => document.addEventListener("visibilitychange", done, { once: true })) : null;
  const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));

  S.post = async (name, body) => {
    const response = await fetch(S.base() + "api/" + name, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: AbortSignal.timeout(HUNG) });
    if (response.status === 403) throw new Error("The server was started anew and does not know this page: open the link that it printed, then this page goes on.");
    return response.json();
  };
  // for what is not the loop's: a server that is gone is the loop's to tell
  S.tryPost = (name, body) => S.post(name, body).catch((error) => ({ error: error.message, lost: true }));

  const wants = () => {
    const found = ["candidates"];
    if (S.look.view === "full") found.push("states");
    found.push(S.look.view === "full" ? S.look.tab : "words");
    return [...new Set(found)];
  };

  const ask = async () => {
    const { tokens, first, run, seq } = S.state;
    const want = wants(), have = {};
    for (const name of ["health", ...want]) if (S.have[name]) have[name] = S.have[name];
    const asked = { tab: S.tab, look: S.asked(), run, seq, from_token: first, to_token: first + tokens.length, have, wants: want };
    const began = (S.began = performance.now());
    const late = setTimeout(() => S.banner("The server is busy; waiting for its answer …"), SLOW);
    const answer = await S.post("look", asked).finally(() => clearTimeout(late));
    if (answer.busy) return;
    if (answer.error) { S.banner(answer.error); return; }
    answer.round_ms = performance.now() - began;
    S.show(answer);
    await S.beside(answer);
    await S.watchJob();
  };

  S.loop = async () => {
    for (;;) {
      await visible();
      if (!S.$("watch")) { await sleep(200); continue; }
      try {
        S.upgrade(); S.mount();
        await ask();
        await painted();
        S.seen = (S.seen || 0) + 1; // counted for tests and the bench
        // the cores that draw are those that decode: rest at least as long as it took
        await sleep(S.live() ? Math.min(IDLE, Math.max(PAUSE, performance.now() - S.began)) : IDLE);
      } catch (error) {
        S.banner(error instanceof TypeError ? "The server does not answer; trying again …" : error.message);
        S.lost = S.lost || S.state.run;
        S.state.run = ""; // everything anew when it is back
        S.have = {};
        await sleep(LOST);
      }
    }
  };
  // where something may change without this tab's doing
  S.live = () => S.answer && S.answer.engine && !["idle", "dead", "ended"].includes(S.answer.engine.state)
    || S.answer && S.answer.state === "recording";
})(window.sotscope);
