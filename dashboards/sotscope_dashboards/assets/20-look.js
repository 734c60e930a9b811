// What this tab looks at. All of it is in the address, so that a link shows the same again.
(function (S) {
  "use strict";
  const TEXTS = { run: "", colour: "entropy", scalar: "norm", site: "", tab: "words", view: "simple" };
  const NUMBERS = ["seq", "start", "stop", "cursor", "layer", "low", "high"];
  S.tab = Math.random().toString(36).slice(2) + Date.now().toString(36);
  S.look = { ...TEXTS, refused: false };
  S.base = () => JSON.parse(S.$("_dash-config").textContent).requests_pathname_prefix;
  S.read = () => {
    const from = new URLSearchParams(location.search);
    S.look = { refused: from.get("refused") === "1" };
    for (const [name, usual] of Object.entries(TEXTS)) S.look[name] = from.get(name) || usual;
    if (!S.look.run) S.look.run = S.$("config").dataset.run || "";
    for (const name of NUMBERS) S.look[name] = from.has(name) ? Number(from.get(name)) : null;
    S.following = S.look.start === null;
  };
  S.set = (changes) => {
    Object.assign(S.look, changes);
    S.following = S.look.start === null;
    const to = new URLSearchParams();
    for (const [name, usual] of Object.entries(TEXTS)) if (S.look[name] !== usual) to.set(name, S.look[name]);
    for (const name of NUMBERS) if (S.look[name] !== null && S.look[name] !== undefined) to.set(name, S.look[name]);
    if (S.look.refused) to.set("refused", "1");
    const query = to.toString();
    clearTimeout(S.writing);
    S.writing = setTimeout(() => history.replaceState(history.state, "", location.pathname + (query ? "?" + query : "")), 120);
    S.soon();
  };
  // what the server must know of it
  S.asked = () => {
    const look = { run: S.look.run, scalar: S.look.scalar, site: S.look.site, theme: S.theme() };
    for (const name of NUMBERS) if (S.look[name] !== null && S.look[name] !== undefined) look[name] = S.look[name];
    return look;
  };
  S.theme = () => document.documentElement.dataset.theme
    || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
})(window.sotscope);
