// The text, token by token: one span each, coloured on request, refused drafts struck through in their place.
(function (S) {
  "use strict";
  const ALL = ["labels", "special", "segment", "mode", "how", "entropy", "logprob", "margin", "norm"];
  // take what is new; the server says where the shown text begins
  S.take = (frame, run, seq) => {
    const state = S.state, same = state.run === run && state.seq === seq;
    const fresh = frame.labels.map((_, i) => {
      const token = { at: frame.start + i };
      for (const name of ALL) token[name] = frame[name][i];
      return token;
    });
    let kept = same ? state.tokens.slice(0, Math.max(0, frame.start - state.first)) : [];
    let first = same && kept.length ? state.first : frame.start;
    if (frame.first > first) { kept = kept.slice(frame.first - first); first = frame.first; }
    const refused = same ? state.refused : {};
    for (const [at, found] of Object.entries(frame.refused)) refused[at] = found;
    S.state = { tokens: [...kept, ...fresh], first, run, seq, refused };
    S.changed = { from: same ? frame.start : first, trimmed: same ? first - state.first : 0, anew: !same || !kept.length };
  };

  const strength = (token) => {
    if (S.look.colour === "norm") return S.usual > 0 && token.norm !== null ? Math.min(1, Math.abs(Math.log2(token.norm / S.usual)) / 2) : 0;
    if (S.look.colour === "acceptance") return 0;
    return token.entropy === null ? 0 : Math.min(1, token.entropy / 5);
  };
  const shown = (label) => S.visible(label.replaceAll("␣", " ").replaceAll("⇥", "\t"));
  const words = (token) => {
    const parts = [`token ${token.at}`, `“${S.visible(token.labels)}”`, token.segment, token.how];
    if (token.how !== "given") parts.push(token.mode);
    if (token.entropy !== null) parts.push(`entropy ${token.entropy.toFixed(2)} nats`, `p ${Math.exp(token.logprob).toFixed(2)}`);
    if (token.norm !== null && S.answer.layers?.length) parts.push(`norm ${token.norm.toPrecision(4)} in layer ${S.answer.layer}`);
    return parts.join(" · ");
  };
  S.words = words;

  const span = (token) => {
    const made = S.el("span", { class: "token", "data-at": token.at });
    const text = (token.special ? S.visible(token.labels) : shown(token.labels)).replaceAll("⏎", "↵");
    const broken = text.endsWith("↵"), begin = text.length - text.trimStart().length;
    // a space before a word is not coloured: it may hang at the end of a line
    const lead = begin < text.length ? begin : 0;
    made.append(text.slice(0, lead), S.el("span", { class: "word", text: text.slice(lead) }));
    if (token.special) made.classList.add("special");
    if (S.lit && S.lit.has(token.at)) made.classList.add("lit");
    if (token.how === "given") made.classList.add("given");
    const alarm = S.alarmAt(token.at);
    if (alarm) { made.classList.add("alarmed"); made.title = `${alarm.sign} ${alarm.kind}: ${alarm.message}`; }
    if (token.how === "accepted") made.classList.add("accepted");
    if (S.look.colour !== "acceptance") made.style.setProperty("--strength", strength(token).toFixed(3));
    else made.dataset.mode = token.mode;
    return broken ? [made, S.el("br")] : [made];
  };
  const refusal = (found) => S.el("span", { class: "refused", title: `drafted and refused: ${found[1].replaceAll("_", " ")}` },
    S.el("span", { class: "mark", text: "⊘", "aria-label": "refused draft" }), S.el("s", { text: shown(found[0]).trim() || found[0] }));
  const nodes = (token) => {
    const found = S.look.refused && S.state.refused[token.at];
    return [...S.jointsAt(token.at).map(S.drawJoint), ...(found ? [refusal(found)] : []), ...span(token)];
  };
  S.drawText = (anew) => {
    const box = S.$("text"), { tokens, first } = S.state;
    const stuck = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    const norms = tokens.map((t) => t.norm).filter((n) => n !== null).sort((a, b) => a - b);
    S.usual = norms.length ? norms[norms.length >> 1] : 0;
    if (anew || S.changed.anew || S.changed.trimmed) box.replaceChildren(...tokens.flatMap(nodes));
    else {
      const from = S.changed.from;
      while (box.lastChild && (!box.lastChild.dataset || !(Number(box.lastChild.dataset.at) < from))) {
        const at = box.lastChild.dataset && box.lastChild.dataset.at;
        if (at !== undefined && Number(at) < from) break;
        // a break or a refused draft belongs to the token before or after it
        if (at === undefined && box.lastChild.previousSibling && box.lastChild.tagName === "BR"
            && Number(box.lastChild.previousSibling.dataset.at) < from) break;
        box.lastChild.remove();
      }
      box.append(...tokens.slice(from - first).flatMap(nodes));
    }
    S.legend();
    S.$("text-note").textContent = first > (S.answer.start || 0)
      ? `${first.toLocaleString()} earlier tokens are not shown; move the cursor to see them.` : tokens.length ? "" : S.answer.why || "No token yet.";
    if (S.following && S.look.cursor === null && stuck) box.scrollTop = box.scrollHeight;
    S.drawCursor();
  };

  // what the shades mean, in words
  S.legend = () => {
    const { tokens } = S.state, drafted = tokens.some((t) => t.how === "accepted");
    const modes = [...new Set(tokens.filter((t) => t.how !== "given").map((t) => t.mode))];
    const said = { entropy: "Shade: entropy (to 5 nats)", norm: "Shade: norm (to 4 times the median, or a quarter)",
      acceptance: "Shade: mode " }[S.look.colour];
    S.$("legend").replaceChildren(...(tokens.length ? [said, ...(S.look.colour === "acceptance" ? modes.map((mode) => S.el("span", { class: "swatch", "data-mode": mode, text: mode })) : []),
      drafted ? " · underlined: accepted" : "", S.look.refused ? " · ⊘ refused" : "",
      tokens.some((t) => S.alarmAt(t.at)) ? " · wavy: alarm" : "", S.health.joints.length ? " · ↺ taken back" : ""] : []));
  };

  S.drawCursor = () => {
    const at = S.cursor();
    for (const old of document.querySelectorAll("#text .here, #text .lit-one")) old.classList.remove("here", "lit-one");
    const here = document.querySelector(`#text .token[data-at="${at}"]`);
    if (here) {
      here.classList.add("here");
      if (S.look.cursor !== null) here.scrollIntoView({ block: "nearest" });
    }
    const token = S.state.tokens[at - S.state.first];
    S.$("readout").textContent = token ? words(token) : "";
    S.moveLine(at);
  };
  S.cursor = () => S.look.cursor === null || S.look.cursor === undefined ? (S.answer ? S.answer.cursor ?? -1 : -1) : S.look.cursor;
  S.light = (tokens) => {
    const wanted = S.lit = new Set(tokens);
    for (const one of document.querySelectorAll("#text .token")) one.classList.toggle("lit", wanted.has(Number(one.dataset.at)));
  };
})(window.sotscope);
