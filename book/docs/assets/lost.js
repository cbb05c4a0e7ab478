/* The page for wrong addresses: the three pages whose addresses are most like the one that was asked for. Two addresses
   are as alike as they share pairs of letters; a 5 is written 05 in ours. */
(() => {
  const pairs = (text) => {
    const letters = text.toLowerCase().replace(/[^a-z0-9]+/g, " ").replace(/\b\d\b/g, "0$&").trim();
    return new Set([...letters].map((_, place) => letters.slice(place, place + 2)).slice(0, -1));
  };
  const alike = (one, other) => (2 * [...one].filter((pair) => other.has(pair)).length) / (one.size + other.size || 1);

  const home = new URL(document.querySelector(".kv-seek").getAttribute("action"), location.href).pathname;
  const asked = pairs(location.pathname.replace(home, "").replace(/(index)?\.(html|md)$/, ""));
  const pages = JSON.parse(document.getElementById("kv-pages").textContent).filter(Boolean);
  const near = pages
    .map(([address, title]) => ({ address, title, alike: alike(asked, pairs(address)) }))
    .filter((page) => page.alike > 0.45)
    .sort((one, other) => other.alike - one.alike)
    .slice(0, 3);
  if (!near.length) return;
  const list = document.createElement("ul");
  for (const { address, title } of near) {
    const link = Object.assign(document.createElement("a"), { href: home + address, textContent: title });
    const item = document.createElement("li");
    item.append(link);
    list.append(item);
  }
  const said = document.getElementById("kv-perhaps");
  said.hidden = false;
  said.after(list);
})();
