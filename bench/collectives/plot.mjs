// The plot of a run: bus bandwidth over size, a panel for each operation and number of ranks.
import { parse, View } from 'vega';
import { compile } from 'vega-lite';
import { CONTENDERS } from './contenders.mjs';
import { OPERATIONS } from './operations.mjs';
import { contendersOf, ranksLabel } from './report.mjs';

/** Ours in strong colours, rivals dashed and grey to brown. */
const COLORS = {
  memory: '#7c3aed',
  shm: '#86efac',
  'shm-registered': '#16a34a',
  ws: '#2563eb',
  mpi: '#dc2626',
  net: '#94a3b8',
  gloo: '#f59e0b',
  openmpi: '#78350f',
};

/** @returns {Promise<string>} an SVG that stands by itself; there must be a size above one element */
export async function drawPlot(run) {
  const names = contendersOf(run);
  const values = run.cells
    .filter(({ size, error }) => size > 4 && error === undefined)
    .map(({ contender, operation, worldSize, size, busGiBps }) => ({
      contender,
      operation: OPERATIONS[operation].title,
      ranks: ranksLabel(run, worldSize),
      size,
      busGiBps,
      isRival: CONTENDERS[contender].isRival === true,
    }));
  const spec = {
    $schema: 'https://vega.github.io/schema/vega-lite/v6.json',
    title: `Bus bandwidth, GiB/s (${run.date}, ${run.machine})`,
    data: { values },
    facet: {
      row: {
        field: 'operation',
        title: null,
        sort: Object.values(OPERATIONS).map(({ title }) => title),
      },
      column: { field: 'ranks', title: null },
    },
    spec: {
      width: 380,
      height: 190,
      mark: { type: 'line', point: { size: 22 } },
      encoding: {
        x: {
          field: 'size',
          type: 'quantitative',
          title: 'size',
          scale: { type: 'log', base: 4, nice: false },
          axis: {
            values: [...new Set(values.map(({ size }) => size))],
            labelExpr:
              "datum.value >= 1048576 ? datum.value / 1048576 + ' MiB' : datum.value / 1024 + ' KiB'",
          },
        },
        y: {
          field: 'busGiBps',
          type: 'quantitative',
          title: 'GiB/s',
          scale: { type: 'log' },
        },
        color: {
          field: 'contender',
          title: null,
          scale: { domain: names, range: names.map((name) => COLORS[name]) },
        },
        strokeDash: { field: 'isRival', legend: null },
      },
    },
    config: { background: 'white', font: 'sans-serif' },
  };
  return new View(parse(compile(spec).spec), { renderer: 'none' }).toSVG();
}
