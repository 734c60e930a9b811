// Form controls that Dash does not have: each .native span gets the control that its data-native describes.
window.sotscope = window.sotscope || {};
(function (S) {
  "use strict";
  S.$ = (id) => document.getElementById(id);
  S.el = (tag, facts, ...children) => {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(facts || {})) {
      if (key === "text") made.textContent = value; // never markup: texts come from a model
      else if (key === "class") made.className = value;
      else if (value === true) made.setAttribute(key, "");
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  };
  const make = (place) => {
    const { tag, options, value, ...facts } = JSON.parse(place.dataset.native);
    const control = S.el(tag, facts);
    for (const [key, text] of options || []) control.append(S.el("option", { value: key, text }));
    if (value !== undefined && value !== null) control.value = value;
    place.replaceChildren(control);
    place.removeAttribute("data-native");
  };
  // control and direction characters are shown as what they are
  const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]/g;
  S.visible = (text) => text.replace(HIDDEN, (c) => `<U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}>`);
  S.upgrade = () => document.querySelectorAll(".native[data-native]").forEach(make);
})(window.sotscope);
