// The figure's style sheet. Its colours are in ../look.json, which the stills read too.

import look from "../look.json";

/** @param {Record<string, string>} colours */
const variables = (colours) =>
  Object.entries(colours)
    .map(([name, value]) => `--${name}:${value}`)
    .join(";");

export const STYLE = `
:host{display:block;margin:1em 0;scroll-margin-top:56px;color:var(--md-default-fg-color,var(--jp-content-font-color1,inherit))}
:host([hidden]){display:none}
*{box-sizing:border-box}
.fig{${variables(look.light)};
 font:15px/1.5 var(--kv-sans,system-ui,-apple-system,"Segoe UI",sans-serif);text-align:start;max-width:1200px;position:relative}
.seen,.hands{position:relative;min-width:0}
.stage{touch-action:pan-y}
.wide .stage{display:grid;grid-template-columns:minmax(0,1fr) clamp(300px,36%,340px);gap:24px}
.above .stage{display:flex;flex-direction:column}
.above :is(.seen,.hands){display:contents}
.above .bubbles{order:-2}
.above .bar{order:-1}
.above .key{order:1}
.above .bar{min-height:56px;margin:.4em 0}
.above .at{flex-basis:9em}
.fig.dark{${variables(look.dark)}}
.title{font-weight:650;margin:0 0 .2em}
.key{margin:.5em 0;font-size:13px;opacity:.85}
.means{white-space:nowrap;margin-inline-end:.7em}
.pic{outline-offset:3px;border-radius:4px;user-select:none;-webkit-user-select:none}
.pic:focus-visible,button:focus-visible,input:focus-visible,summary:focus-visible{outline:3px solid var(--line)}
svg{display:block;width:100%;overflow:visible}
svg text{fill:var(--ink);font-size:12px}
svg .h{font-size:12px;fill:currentColor;opacity:.8;font-weight:600}
svg .l{fill:currentColor;font-size:14px;font-weight:650}
svg .s{fill:currentColor;font-size:11px}
.rowbg{fill:var(--rule)}
.card,.row,.lead,.shelf{transition:transform calc(.35s*var(--pace,1)) ease-in-out,opacity .3s}
.card{cursor:pointer}
.card rect{transition:height .3s ease-in-out,y .3s ease-in-out,opacity calc(.45s*var(--pace,1))}
.card .lvl{opacity:0;transition:height .3s ease-in-out,width calc(.3s*var(--pace,1)) calc(.15s*var(--pace,1)),
 opacity calc(.3s*var(--pace,1))}
.card.held .lvl{opacity:1}
.hue{fill:none;stroke-width:4}
.hue.none{stroke:none}
${look.hues.map(({ colour, dashes }, i) => `.hue${i}{stroke:${colour}${dashes && `;stroke-dasharray:${dashes}`}}`).join("\n")}
svg .words{font-size:11px}
.card:not(.held) .words{opacity:.62}
.halo,.hit,.hole,.miss,.copying,.falling{pointer-events:none}
.halo{fill:none;stroke:var(--ok);stroke-width:4;transform-box:fill-box;transform-origin:center}
.falling{transform-box:fill-box;transform-origin:center}
.hit{fill:none;stroke:var(--ok);stroke-width:3}
.hole{fill:none;stroke:var(--soft);stroke-width:1.2;stroke-dasharray:3 3}
.miss{fill:none;stroke:var(--new);stroke-width:3;stroke-linecap:round}
.copying{fill:var(--held);stroke:var(--line);stroke-dasharray:4 3;opacity:.8}
.pic .sign{animation:late .2s .25s both;pointer-events:none}
.pic .sign.old{animation:none}
@keyframes late{from{opacity:0}}
.still *{transition:none!important;animation:none!important}
@media (prefers-reduced-motion:reduce){.fig *{transition:none!important;animation:none!important}}
.base{fill:var(--card);stroke:var(--soft);stroke-width:1.2}
.never .base{stroke-dasharray:3 3}
.held .base{stroke:var(--line);stroke-width:2}
rect.card{fill:var(--card);stroke:var(--soft)}
rect.card.never{stroke-dasharray:2 2}
rect.card.held{fill:var(--held);stroke:var(--line);stroke-width:1.5}
rect.card.filling{fill:var(--card)}
rect.card.sel{stroke:currentColor;stroke-width:3}
.through{pointer-events:none}
.dense .ring{stroke-width:2}
.lvl{fill:var(--tint,var(--held))}
.tag{fill:var(--tag);stroke:var(--soft)}
svg .tagtext{font:600 11px var(--kv-mono,ui-monospace,Menlo,Consolas,monospace);text-anchor:middle;
 fill:#111;transition:transform .3s ease-in-out}
svg .by{font-family:var(--kv-sans,system-ui,sans-serif)}
svg .id{font-size:14px;font-weight:700}
svg .ref{font-size:12px;text-anchor:end}
.ring{fill:none;stroke:var(--new);stroke-width:2.5}
.sign circle{fill:var(--new)}
.sign path{fill:none;stroke:var(--card);stroke-width:1.8;stroke-linecap:round;stroke-linejoin:round}
.icon{display:inline;width:16px;height:16px;vertical-align:-3px}
.differs>.base,rect.card.differs,.cell.differs>:first-child{stroke:var(--ink);stroke-width:3;stroke-dasharray:.1 5;stroke-linecap:round}
.live .bar button{display:none}
.follows .bar{visibility:hidden}
.sel>.base{stroke:currentColor;stroke-width:3.5}
.cell{cursor:pointer}
.cell>:first-child{stroke:var(--soft);stroke-width:1;fill:var(--card)}
svg .cell text{font-size:11px;text-anchor:middle}
.cell.named>:first-child{fill:var(--tag)}
svg .cell.named text{fill:#111}
.cell.held>:first-child{fill:var(--held);stroke:var(--line)}
svg .cell.held text{fill:var(--ink)}
.cell.never>:first-child{stroke-dasharray:2 2}
.cell.null>:first-child{fill:url(#hatch)}
.cell.chg>:first-child{stroke:var(--new);stroke-width:2}
.cell.sel>:first-child{stroke:currentColor;stroke-width:3}
.nul{fill:url(#hatch);stroke:var(--soft);stroke-dasharray:2 2}
.ghost rect{fill:none;stroke:var(--line);stroke-width:1.5;stroke-dasharray:5 3}
.shelf rect,.flying rect{fill:var(--tag);stroke:var(--soft)}
.place{fill:none;stroke:var(--soft);stroke-dasharray:3 3}
.bubbles{display:flex;gap:8px;flex-wrap:wrap;align-items:flex-start;align-content:flex-start}
.bubble{flex:1 1 200px;margin:0;padding:.4em .7em;border:1px solid var(--soft);border-radius:12px 12px 12px 2px;font-size:14px;
 line-height:1.4;background:var(--card);color:var(--ink)}
.bubble:nth-child(2){border-radius:12px 12px 2px 12px}
.bubble.gone{color:var(--soft);border-style:dashed}
${look.persons.light.map((colours, i) => `.person${i}{${variables(colours)}}`).join("\n")}
${look.persons.dark.map((colours, i) => `.dark .person${i}{${variables(colours)}}`).join("\n")}
.bubble{border-color:var(--who)}
.bubble b{color:var(--who)}
.paid{display:flex;flex-wrap:wrap;align-items:center;gap:0 8px}
.meter{flex:1 1 80px;display:flex;gap:1px;min-width:60px}
.meter i{flex:1 1 0;height:9px;box-shadow:inset 0 0 0 1px var(--who);opacity:.55}
.meter i.later{opacity:.2}
.meter i.done{background:var(--who);opacity:1}
.meter.new i.done{animation:paid .1s calc(min(60ms*var(--i),1.9s)) both}
@keyframes paid{from{background:none;opacity:.55}}
.found{text-decoration:underline 2px var(--ok);text-underline-offset:3px}
.cost{font-weight:700;white-space:nowrap}
.bubbles[hidden],.narrow .memory{display:none}
.track{position:relative;flex:1 1 180px;min-width:90px}
.track input{display:block;width:100%;height:32px;margin:0;accent-color:var(--line)}
.ticks{position:absolute;inset:26px 8px 0;height:8px;pointer-events:none}
.ticks i{position:absolute;width:2px;height:7px;margin-inline-start:-1px;background:var(--soft)}
.ticks .dot{top:1px;width:4px;height:4px;margin-inline-start:-2px;border-radius:2px;background:var(--soft)}
.at{flex:1 1 100%;font-size:14px;line-height:1.4;height:2.8em;overflow:hidden}
.at output{margin-inline-start:.8em}
.probe{position:absolute;inset-inline:0;visibility:hidden;pointer-events:none}
.said,.hashes,.wait{display:flow-root}
.bar{display:flex;flex-wrap:wrap;align-items:center;gap:4px;margin:.6em 0}
button{font:inherit;color:inherit;background:var(--btn);border:1px solid var(--soft);border-radius:6px;cursor:pointer;
 min-height:40px;min-width:40px;padding:4px 8px}
button:hover{border-color:var(--line)}
button[aria-disabled=true]{opacity:.45;cursor:default}
.bar button svg{width:22px;height:22px;fill:currentColor;margin:auto}
.bar button[hidden]{display:none}
.count{font-variant-numeric:tabular-nums;font-weight:600}
.asking .cap{font-weight:600}
.cap p,.ask p{margin:.2em 0 .5em}
.do{font-weight:650}
.cap .call{margin:.6em 0 0;font:650 12.5px/1.5 var(--kv-mono,ui-monospace,Menlo,Consolas,monospace)}
.lines{margin:0 0 .5em;padding:0;list-style:none;opacity:.85;
 font:12.5px/1.5 var(--kv-mono,ui-monospace,Menlo,Consolas,monospace);overflow-wrap:anywhere}
.note{font-weight:600}
.end{white-space:pre-wrap}
.note.right{color:var(--ok)}
.ask{border:2px solid var(--line);border-radius:8px;padding:.6em .8em;margin:.4em 0}
.ask[hidden],.panel[hidden],.wait[hidden]{display:none}
.source{display:flex;flex-wrap:wrap;gap:0 10px;font-size:13px;line-height:24px;opacity:.85}
.source a{color:inherit;overflow-wrap:anywhere}
.source a:hover{color:var(--line)}
.source a::after{content:" \u2197" / ""}
.source a:focus-visible{outline:3px solid var(--line)}
.choices{display:flex;flex-wrap:wrap;gap:6px;margin:.4em 0}
.choices .no{text-decoration:line-through}
.panel{border:1px solid var(--soft);border-radius:8px;padding:.5em .8em;margin:.5em 0;position:relative}
.panel ul,.how ul{margin:.2em 0;padding-inline-start:1.2em}
.panel button{position:absolute;top:4px;inset-inline-end:4px}
.hashes ul,.wait ul{display:flex;flex-wrap:wrap;gap:4px 6px;list-style:none;margin:.3em 0;padding:0}
.hashes li,.wait li{border:1px solid var(--soft);border-radius:5px;padding:0 6px;font-size:13px;
 font-variant-numeric:tabular-nums}
.hashes code{font:600 12px var(--kv-mono,ui-monospace,Menlo,Consolas,monospace);background:var(--tag);color:#111;
 border-radius:3px;padding:1px 4px}
.hashes li.chg{border-color:var(--new);box-shadow:inset 0 0 0 1px var(--new)}
.hashes li.gone{border:1px dashed var(--new);text-decoration:line-through}
.wait li.preempted{border:1px dashed var(--new)}
summary{cursor:pointer;font-size:14px;padding:.25em 0}
pre{overflow-x:auto;font:13px/1.4 var(--kv-mono,ui-monospace,Menlo,Consolas,monospace);margin:.3em 0}
.error{border:2px solid var(--new);border-radius:6px;padding:.6em .8em}
slot{display:none}
@media print{.bar,.ask,.source,details:not([open]){display:none}slot{display:block}}
.narrow .bubble{font-size:13px;max-height:82px;overflow:hidden}
.narrow .bubble:only-child{max-height:none}
.narrow .hands{display:flex;flex-direction:column-reverse}
.narrow .bar{margin:0;padding:4px 0}
.narrow .bar button{flex:1 1 44px;min-height:44px;min-width:44px}
.narrow .track{flex-basis:50%;order:1}
.narrow .at{flex-basis:40%;order:2;font-size:12.5px}
.narrow.follows .bar{display:none}
.narrow:not(.live,.follows){--most:clamp(150px,100svh - var(--seen) - 200px,50svh)}
.narrow:not(.live,.follows) .hands{position:sticky;bottom:0;z-index:1;padding-bottom:env(safe-area-inset-bottom);
 border-top:1px solid var(--soft);background:var(--md-default-bg-color,var(--jp-layout-color1,Canvas))}
.narrow .hands>.said{max-height:var(--most);overflow-y:auto}
@media print{.narrow .hands{position:static}}`;
