"use strict";
// The offline page: one report, from the data it holds.

const whole = document.getElementById("report"), shown = showReport(JSON.parse(document.getElementById("data").textContent), whole);
themeButton(document.getElementById("theme"));
let wide = window.innerWidth;
window.addEventListener("resize", () => { if (window.innerWidth !== wide) { wide = window.innerWidth; shown.drawAll(); } });
// On paper nothing can be opened.
const pairs = document.getElementById("pairs"), isOpen = pairs.open;
window.addEventListener("beforeprint", () => { pairs.open = true; });
window.addEventListener("afterprint", () => { pairs.open = isOpen; });
