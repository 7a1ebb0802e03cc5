// The page's clicks: a layer is chosen, anywhere, and its kernel is shown; bars change their order.
"use strict";
(() => {
  const holder = document.getElementById("texts");
  const panel = document.getElementById("kernel");
  let unpacked = null;
  let form = 0; // of a kernel's text: 0 loops, 1 assembly

  // {number of a kernel: [loops, assembly]}, inflated when it is first asked for.
  const texts = () => {
    unpacked ??= (async () => {
      if (!holder) return {};
      const packed = Uint8Array.from(atob(holder.textContent), (c) => c.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
      return JSON.parse(await new Response(stream).text());
    })();
    return unpacked;
  };

  const button = (text, chosen, act) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.setAttribute("aria-pressed", String(chosen));
    made.addEventListener("click", act);
    return made;
  };

  const show = async (call) => {
    const template = document.getElementById(`call-${call}`);
    if (!template || !panel) return;
    for (const node of document.querySelectorAll("[data-chosen]")) delete node.dataset.chosen;
    for (const node of document.querySelectorAll(`[data-call="${call}"]`)) node.dataset.chosen = "";
    panel.replaceChildren(template.content.cloneNode(true));
    const kernel = template.dataset.kernel;
    let found;
    try {
      found = (await texts())[kernel];
    } catch (error) {
      found = null;
    }
    if (!document.querySelector(`[data-call="${call}"][data-chosen]`)) return; // another was chosen
    const text = document.createElement("pre");
    text.tabIndex = 0;
    if (!found) {
      text.className = "missing";
      text.textContent = found === null
        ? "This browser cannot unpack the kernels' texts (DecompressionStream)."
        : "The page has no text of this kernel.";
      panel.append(text);
      return;
    }
    const names = ["Loops", "Assembly"];
    const bar = document.createElement("div");
    bar.className = "tabs";
    const draw = () => {
      bar.replaceChildren(...names.map((name, n) => button(name, n === form, () => {
        form = n;
        draw();
      })));
      text.textContent = found[form] || "There is none.";
    };
    draw();
    panel.append(bar, text);
  };

  const choose = (element, event) => {
    event.preventDefault();
    show(element.dataset.call);
    const node = document.querySelector(`#picture [data-call="${element.dataset.call}"]`);
    if (node && !element.closest("#picture")) {
      document.getElementById("graph").scrollIntoView();
      node.scrollIntoView({ block: "nearest", inline: "center" });
    } else if (element.closest("#picture") && matchMedia("(max-width: 760px)").matches) {
      panel.scrollIntoView({ block: "start" });
    }
  };

  document.addEventListener("click", (event) => {
    const element = event.target.closest("[data-call]");
    if (element) choose(element, event);
    const order = event.target.closest("button.order");
    if (order) {
      const sorted = order.closest(".chart").classList.toggle("sorted");
      order.setAttribute("aria-pressed", String(sorted));
      order.textContent = sorted ? "In order" : "Costliest first";
    }
  });
  document.addEventListener("keydown", (event) => {
    const element = event.target.closest?.("[data-call]");
    if (element && (event.key === "Enter" || event.key === " ")) choose(element, event);
  });
  const costliest = document.querySelector("#picture [data-costliest]");
  if (costliest) show(costliest.dataset.call);
  document.documentElement.dataset.ready = "";
})();
