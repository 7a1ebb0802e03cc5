// The page's clicks: a layer is chosen, anywhere, and its kernel is shown; bars change their order.
"use strict";
(() => {
  const holder = document.getElementById("texts");
  const panel = document.getElementById("kernel");
  let unpacked = null;
  let form = 0; // of a kernel's text: 0 loops, 1 assembly

  // {calls: [{name, kernel, facts}], kernels: {number: [loops, assembly]}}, inflated when it is
  // first asked for.
  const texts = () => {
    unpacked ??= (async () => {
      const packed = Uint8Array.from(atob(holder.textContent), (c) => c.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
      return JSON.parse(await new Response(stream).text());
    })();
    return unpacked;
  };

  const element = (name, text, kind) => {
    const made = document.createElement(name);
    made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };

  const button = (text, chosen, act) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.setAttribute("aria-pressed", String(chosen));
    made.addEventListener("click", act);
    return made;
  };

  const show = async (number) => {
    if (!holder || !panel) return;
    for (const node of document.querySelectorAll("[data-chosen]")) delete node.dataset.chosen;
    for (const node of document.querySelectorAll(`[data-call="${number}"]`)) {
      node.dataset.chosen = "";
    }
    let found;
    try {
      found = await texts();
    } catch (error) {
      const why = "This browser cannot unpack what the page knows of kernels (DecompressionStream).";
      panel.replaceChildren(element("p", why, "missing"));
      return;
    }
    if (!document.querySelector(`[data-call="${number}"][data-chosen]`)) return; // another was chosen
    const call = found.calls[number];
    const facts = document.createElement("dl");
    for (const [label, text] of call.facts) facts.append(element("dt", label), element("dd", text));
    panel.replaceChildren(element("h3", call.name), facts);
    const forms = found.kernels[call.kernel];
    if (!forms) {
      panel.append(element("p", "The page has no text of this kernel.", "missing"));
      return;
    }
    const text = document.createElement("pre");
    text.tabIndex = 0;
    const bar = element("div", "", "tabs");
    const draw = () => {
      bar.replaceChildren(...["Loops", "Assembly"].map((name, n) => button(name, n === form, () => {
        form = n;
        draw();
      })));
      text.textContent = forms[form] || "There is none.";
    };
    draw();
    panel.append(bar, text);
  };

  const choose = (chosen, event) => {
    event.preventDefault();
    show(chosen.dataset.call);
    const node = document.querySelector(`#picture [data-call="${chosen.dataset.call}"]`);
    if (!chosen.closest("#picture")) {
      document.getElementById("graph").scrollIntoView();
      node?.scrollIntoView({ block: "nearest", inline: "center" });
    } else if ( matchMedia("(max-width: 760px)").matches) {
      panel.scrollIntoView({ block: "start" });
    }
  };

  document.addEventListener("click", (event) => {
    const chosen = event.target.closest("[data-call]");
    if (chosen) choose(chosen, event);
    const order = event.target.closest("button.order");
    if (order) {
      const sorted = order.closest(".chart").classList.toggle("sorted");
      order.setAttribute("aria-pressed", String(sorted));
      order.textContent = sorted ? "In order" : "Costliest first";
    }
  });
  document.addEventListener("keydown", (event) => {
    const chosen = event.target.closest?.("[data-call]");
    if (chosen && (event.key === "Enter" || event.key === " ")) choose(chosen, event);
  });
  const costliest = document.querySelector("#picture [data-costliest]")
    ?? document.querySelector(".bars [data-call]");
  // What is seen first is drawn first: the costliest kernel's text waits until nothing else is done.
  (window.requestIdleCallback ?? setTimeout)(() => {
    if (costliest && !document.querySelector("[data-chosen]")) show(costliest.dataset.call);
  });
  document.documentElement.dataset.ready = "";
})();
