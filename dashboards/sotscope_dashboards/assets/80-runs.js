// The list of runs: links, search, compare, delete after a question.
(function (S) {
  "use strict";
  const FRESH = 3000;
  const components = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});
  const functions = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});
  const two = (number) => String(number).padStart(2, "0");
  functions.when = (seconds) => {
    const at = new Date(1000 * seconds);
    return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}`;
  };
  components.RunLink = (props) => window.React.createElement("a",
    { href: `${S.base()}?run=${props.data.id}&view=full` }, props.value.replace(/\.sot$/, ""));
  components.Sparkline = (props) => {
    const values = (props.value || []).filter((v) => v !== null);
    if (!values.length) return null;
    const low = Math.min(...values), span = Math.max(...values) - low || 1, step = 96 / Math.max(1, values.length - 1);
    const points = values.map((v, i) => `${(2 + i * step).toFixed(1)},${(20 - (16 * (v - low)) / span).toFixed(1)}`).join(" ");
    return window.React.createElement("svg", { width: 100, height: 22, role: "img", "aria-label": `from ${values[0]} to ${values[values.length - 1]}` },
      window.React.createElement("polyline", { points, fill: "none", stroke: "currentColor", strokeWidth: 1 }));
  };
  const api = () => window.dash_ag_grid && S.$("runs-grid") && window.dash_ag_grid.getApi("runs-grid");
  const chosen = () => (api() ? api().getSelectedRows() : []);
  const note = (text) => { S.$("runs-note").textContent = text; };

  // the list as it is now: runs come, grow and go
  const refresh = async () => {
    const response = await fetch(S.base() + "api/runs").catch(() => null);
    if (!response || !S.$("runs-grid")) { if (!response) S.banner("The server does not answer; trying again …"); return; }
    if (response.status === 403) { S.banner("The server was started anew and does not know this page: open the link that it printed."); return; }
    const found = (await response.json()).runs, seen = JSON.stringify(found);
    S.banner("");
    if (seen === S.listed) return;
    S.listed = seen;
    window.dash_clientside.set_props("runs-grid", { rowData: found, style: { height: `min(100vh - 150px, ${34 * found.length + 40}px)` } });
    S.$("runs-place").hidden = !found.length; S.$("runs-empty").hidden = found.length > 0;
  };
  const keep = async () => {
    if (S.$("runs-place") && !document.hidden) await refresh();
    setTimeout(keep, FRESH);
  };
  setTimeout(keep, FRESH);

  setInterval(() => { // the grid tells nobody outside of Dash
    for (const [id, here] of [["to-watch", S.$("watch") && !S.look.run], ["to-runs", S.$("runs-note")]]) {
      if (here) S.$(id)?.setAttribute("aria-current", "page"); else S.$(id)?.removeAttribute("aria-current");
    }
    if (!S.$("runs-note")) return;
    S.upgrade();
    const rows = chosen();
    S.$("runs-compare").disabled = rows.length < 2;
    S.$("runs-delete").disabled = !rows.length;
  }, 250);

  document.addEventListener("input", (event) => { if (event.target.id === "runs-search" && api()) api().setGridOption("quickFilterText", event.target.value); });
  document.addEventListener("click", async (event) => {
    const id = event.target.id;
    if (id === "runs-compare") location.assign(`${S.base()}compare?runs=${chosen().map((row) => row.id).join(",")}`);
    if (id === "runs-delete") {
      const rows = chosen(), size = rows.reduce((sum, row) => sum + row.bytes, 0) / 1e6;
      S.$("delete-question").textContent = `Delete ${rows.map((row) => row.name).join(", ")} (${size.toFixed(1)} MB)? This cannot be undone.`;
      S.$("delete-dialog").showModal();
    }
    if (id === "delete-no") S.$("delete-dialog").close();
    if (id === "delete-yes") {
      S.$("delete-dialog").close();
      const failed = [];
      for (const row of chosen()) {
        const answer = await S.tryPost("delete", { run: row.id });
        if (answer.error) failed.push(answer.error);
      }
      await refresh();
      note(failed.join(" "));
    }
  });
})(window.sotscope);
