// Sends what the controls hold to the studio's acts, and puts what they answer into its places. An
// answer that is asked for anew, or whose tab is left, is not waited for any longer.
"use strict";
(() => {
  const PAUSE_MS = 200, page = crypto.getRandomValues(new Uint32Array(4)).join("-");
  const streams = new Map(), sources = new WeakMap();
  const at = (id) => document.getElementById(id);

  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (given) {
    sessionStorage.setItem("key", given);
    history.replaceState(null, "", location.pathname);
  }

  const valuesAround = (element) => {
    const values = { page }, form = element.closest("form");
    for (const [name, value] of new FormData(form)) values[name] = name in values ? [values[name], value].flat() : value;
    return values;
  };

  const end = (act) => {
    streams.get(act)?.abort();
    streams.delete(act);
  };

  // Only what differs is exchanged, so that a chart that is read and a line that is open stay.
  const put = (place, html) => {
    const made = document.createElement("template"), was = place.value;
    made.innerHTML = html;
    const before = sources.get(place) ?? [], after = [...made.content.childNodes], old = [...place.childNodes];
    const open = new Set([...place.querySelectorAll("details[open] > summary")].map((each) => each.textContent));
    const texts = after.map((each) => each.outerHTML ?? each.textContent);
    const isKept = (number) => texts[number] === before[number] && old[number] && !place.matches("select");
    place.replaceChildren(...after.map((each, number) => (isKept(number) ? old[number] : each)));
    for (const each of place.querySelectorAll("summary")) each.parentElement.open ||= open.has(each.textContent);
    sources.set(place, texts);
    // What was chosen while the names were fetched stays.
    if (place.dataset.ends && [...place.options].some((each) => each.value === was)) place.value = was;
    if (place.matches("select[data-act]") && !(place.dataset.ends && place.value === was)) run(place);
  };

  const tell = (tab, message) => {
    const problem = document.createElement("p");
    problem.className = "problem";
    problem.role = "alert";
    problem.textContent = message;
    at(`${tab}-problem`)?.replaceChildren(problem);
  };

  const isOld = (flag) => {
    for (const each of document.querySelectorAll(".answer-of")) each.classList.toggle("stale", flag && each.childNodes.length > 0);
    at("plan-old").hidden = !document.querySelector(".answer-of.stale");
  };

  const take = (update) => {
    if (update.go) {
      if (location.hash === `#${update.go}`) show();
      else location.hash = update.go;
      return;
    }
    const place = at(update.slot);
    if (!place) return;
    if ("value" in update) place.value = update.value;
    else put(place, update.html);
    if (update.slot === "plan-recipe") {
      isOld(false);
      at("copy").hidden = false;
    }
  };

  const run = async (element, act = element.dataset.act) => {
    const tab = element.closest(".tab").id, control = new AbortController(), status = at(`${act}-status`);
    end(act);
    if (element.dataset.ends) end(element.dataset.ends);
    streams.set(act, control);
    if (act === "plan") isOld(true);
    try {
      const answer = await fetch(`/act/${act}`, {
        method: "POST",
        headers: { "content-type": "application/json", "x-brimful-key": sessionStorage.getItem("key") ?? "" },
        body: JSON.stringify(valuesAround(element)),
        signal: control.signal,
      });
      if (!answer.ok) {
        tell(tab, (await answer.json()).error.message);
        return;
      }
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done || control.signal.aborted) return;
        const events = (text + value).split("\n\n");
        text = events.pop();
        for (const each of events) take(JSON.parse(each.slice("data: ".length)));
      }
    } catch (error) {
      if (!control.signal.aborted) tell(tab, "The studio does not answer. It may have ended; see its terminal.");
    } finally {
      if (streams.get(act) === control) {
        streams.delete(act);
        if (status) status.textContent = "";
      }
    }
  };

  const show = () => {
    const tabs = [...document.querySelectorAll(".tab")], shown = tabs.find((each) => `#${each.id}` === location.hash) ?? tabs[0];
    for (const each of tabs) each.hidden = each !== shown;
    for (const each of document.querySelectorAll(".tabs a")) each.ariaCurrent = each.hash === `#${shown.id}` ? "page" : null;
    end("watch");
    if (shown.dataset.open) run(shown, shown.dataset.open);
  };

  let pause;
  document.addEventListener("input", ({ target }) => {
    if (target.dataset.for) {
      const value = target.dataset.steps ? target.dataset.steps.split(",")[target.value] : target.value;
      if (value || target.dataset.steps) document.querySelector(`[name="${target.dataset.for}"]`).value = value;
    }
    const live = target.closest("[data-live]");
    if (!live || target.name === "name") return;
    clearTimeout(pause);
    end(live.dataset.live);
    isOld(true);
    pause = setTimeout(() => run(live, live.dataset.live), PAUSE_MS);
  });
  document.addEventListener("change", ({ target }) => {
    const acting = target.closest("select[data-act], fieldset[data-act]");
    if (acting) run(acting);
    if (target.id === "runs-run") at("runs-wanted").value = target.value;
  });
  document.addEventListener("click", ({ target }) => {
    const acting = target.closest("button[data-act]");
    if (acting) run(acting);
  });
  document.addEventListener("keydown", (event) => {
    if (!event.target.dataset.enter || event.key !== "Enter" || !event.shiftKey) return;
    event.preventDefault();
    run(event.target, event.target.dataset.enter);
  });
  document.addEventListener("submit", (event) => event.preventDefault());
  at("copy").addEventListener("click", () => {
    const recipe = document.querySelector("#plan-recipe:not(.stale) pre.text");
    if (!recipe) return;
    getSelection().selectAllChildren(recipe);
    // Pages that are not from this machine have no clipboard but by what is selected.
    if (navigator.clipboard) navigator.clipboard.writeText(recipe.textContent);
    else document.execCommand("copy");
  });
  addEventListener("hashchange", show);
  show();
})();
