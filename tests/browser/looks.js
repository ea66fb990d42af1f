// What is wrong with how a page looks, as sentences. Called with nothing in the page.
() => {
  const wrong = [];
  const shown = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const told = (element) => `<${element.tagName.toLowerCase()} class="${element.getAttribute("class") || ""}"> "${(element.textContent || "").trim().slice(0, 40)}"`;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();

  const parse = (colour) => {
    const numbers = (colour.match(/[\d.]+/g) || ["0", "0", "0", "0"]).map(Number);
    return { rgb: numbers.slice(0, 3), alpha: numbers.length > 3 ? numbers[3] : 1 };
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const { rgb, alpha } = parse(getComputedStyle(each).backgroundColor);
      if (alpha > 0.5) return rgb;
    }
    return [255, 255, 255];
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((value) => value / 255).map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };

  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || seen.has(element) || ["STYLE", "SCRIPT"].includes(element.tagName) || !shown(element)) continue;
    if (element.closest(".hidden, .skip, legend")) continue;
    seen.add(element);
    const range = document.createRange();
    range.selectNodeContents(element);
    const box = range.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const scrolls = element.closest(".scroll, pre");
    if (!scrolls && (box.right > innerWidth + 1 || box.left < -1)) wrong.push(`outside the window: ${told(element)}`);
    const holder = element.closest("svg, .card, td, th, li");
    if (holder && !scrolls) {
      const around = holder.getBoundingClientRect();
      if (box.right > around.right + 2 || box.left < around.left - 2) wrong.push(`wider than what holds it: ${told(element)}`);
    }
    const clips = ["hidden", "clip"].includes(getComputedStyle(element).overflowX);
    if (clips && element.scrollWidth > element.clientWidth + 1) wrong.push(`cut off: ${told(element)}`);
    const style = getComputedStyle(element);
    const ratio = contrast(parse(element.closest("svg") ? style.fill : style.color).rgb, behind(element));
    if (ratio < 4.5) wrong.push(`contrast ${ratio.toFixed(2)}: ${told(element)}`);
  }
  for (const figure of document.querySelectorAll("figure")) {
    if (!figure.querySelector("figcaption")?.textContent.trim()) wrong.push(`a figure without a name: ${told(figure)}`);
  }
  for (const picture of document.querySelectorAll('svg, [role="img"]')) {
    const hidden = picture.closest('[aria-hidden="true"]') || picture.parentElement.closest('[role="img"]');
    if (!hidden && !picture.getAttribute("aria-label")) wrong.push(`a picture without a description: ${told(picture)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of new Set(ids.filter((id, place) => ids.indexOf(id) !== place))) wrong.push(`twice the id ${id}`);
  for (const cell of document.querySelectorAll("th")) if (!cell.scope) wrong.push(`a heading without scope: ${told(cell)}`);
  return wrong;
}
