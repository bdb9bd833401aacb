// The rows of a replayed step as a page that opens from disk: without scripts, for texts of rows
// are anybody's.

import { escapeXml } from '../output/loss-chart.js';
import type { Replayed, ReplayedRow } from './replay-step.js';

/** The characters of a text that are seen before it is opened. */
const SUMMARY_CHARS = 80;

const STYLE = `
:root { color-scheme: light dark; --bar: #9db8f2; --line: #c4cad3; --muted: #545e6b; }
@media (prefers-color-scheme: dark) { :root { --bar: #31519e; --line: #3a434f; --muted: #a3adba; } }
body { font: 15px/1.4 system-ui, sans-serif; margin: 2rem; }
h1 { font-size: 1.3rem; } p { color: var(--muted); max-width: 60rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: right; white-space: nowrap; }
td.text, td.from { text-align: left; }
td.text { min-width: 24rem; white-space: normal; }
thead th { text-align: center; }
td.bar { background: linear-gradient(to left, var(--bar) var(--share), transparent var(--share)); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .4rem 0; }
`;

/** @param title names the run and the step */
export function replayPage({ metrics, difference, rows }: Replayed, title: string): string {
  const layers = [...new Set(rows.flatMap((row) => Object.keys(row.layers)))];
  const most = (values: readonly number[]) => Math.max(...values.filter(Number.isFinite), 0);
  const norms = most(rows.map(({ gradNorm }) => gradNorm));
  const ofLayers = most(rows.flatMap((row) => Object.values(row.layers)));
  const heads = [
    'row',
    'gradient norm',
    'loss',
    'targets',
    'largest activation',
    'text',
    'from',
    ...layers,
  ];
  const body = rows.map((row) => {
    const cells = [
      `<th scope="row">${row.row}</th>`,
      bar(row.gradNorm, norms),
      `<td>${row.loss.toFixed(4)}</td><td>${row.targets}</td><td>${activationOf(row)}</td>`,
      `<td class="text">${textOf(row)}</td>`,
      `<td class="from">${row.places.map(escapeXml).join('<br>')}</td>`,
      ...layers.map((name) => bar(row.layers[name] ?? 0, ofLayers)),
    ];
    return `<tr>${cells.join('')}</tr>`;
  });
  const { loss, gradNorm } = metrics;
  const compared = difference === undefined ? 'as in the record, to the bit' : difference;
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>${escapeXml(title)}</title><style>${STYLE}</style></head><body><main>
<h1>${escapeXml(title)}</h1>
<p>Loss ${loss}, gradient norm ${gradNorm}: ${escapeXml(compared)}. Each row was computed alone, with the weights that the step began with. Norms are those of what a row adds to the step's gradients, of all layers and of each; the largest stands first.</p>
<div class="wide" tabindex="0" role="region" aria-label="rows of the step"><table>
<thead><tr>${heads.map((head) => `<th scope="col">${escapeXml(head)}</th>`).join('')}</tr></thead>
<tbody>
${body.join('\n')}
</tbody></table></div>
</main></body></html>
`;
}

/** A number over a bar that is as long as its part of the largest one. */
function bar(value: number, most: number): string {
  const share = Number.isFinite(value) ? (100 * value) / (most || 1) : 100;
  return `<td class="bar" style="--share: ${share.toFixed(1)}%">${value.toPrecision(4)}</td>`;
}

function activationOf({ activations }: ReplayedRow): string {
  const [most] = Object.entries(activations).sort(([, a], [, b]) => b - a);
  return most === undefined ? '' : `${most[1].toPrecision(4)} in ${escapeXml(most[0])}`;
}

function textOf({ texts }: ReplayedRow): string {
  return texts
    .map((text) => {
      const line = text.replace(/\s+/g, ' ').trim();
      return line.length <= SUMMARY_CHARS
        ? escapeXml(line)
        : `<details><summary>${escapeXml(line.slice(0, SUMMARY_CHARS))}...</summary><pre>${escapeXml(text)}</pre></details>`;
    })
    .join('<br>');
}
