"use strict";
// The offline page: one document, from the data it holds.

const whole = document.getElementById("report"), content = JSON.parse(document.getElementById("data").textContent), view = showDocument(whole, content.sections);
themeButton(document.getElementById("theme"));
const redraw = () => showDocument(whole, content.sections, view);
let wide = window.innerWidth;
window.addEventListener("resize", () => { if (window.innerWidth !== wide) { wide = window.innerWidth; redraw(); } });
