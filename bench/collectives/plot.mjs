// Plots a run: bus bandwidth over size, in one panel for each operation and number of ranks.
import { parse, View } from 'vega';
import { compile } from 'vega-lite';
import { OPERATIONS } from './operations.mjs';
import { ranksLabel } from './report.mjs';

/** Ours have strong colors. Rivals are dashed, in gray to brown. */
const COLORS = {
  memory: '#7c3aed',
  shm: '#86efac',
  'shm-registered': '#16a34a',
  ws: '#2563eb',
  mpi: '#dc2626',
  net: '#94a3b8',
  atomics: '#475569',
  gloo: '#f59e0b',
  openmpi: '#78350f',
};

const DASHES = [
  [1, 0],
  [6, 3],
  [2, 2],
  [1, 3],
  [8, 2, 2, 2],
];

/** @returns {Promise<string>} a self-contained SVG. The run must have a size above one element. */
export async function drawPlot(run) {
  const names = run.contenders.map(({ name }) => name);
  const rivals = run.contenders.filter(({ isRival }) => isRival).map(({ name }) => name);
  const wires = [...new Set(names.flatMap((name) => name.split('+').slice(1)))];
  const kindOf = (name) => (rivals.includes(name) ? 'rival' : (name.split('+')[1] ?? 'exact'));
  const values = run.cells
    .filter(({ size, error }) => size > 4 && error === undefined)
    .map(({ contender, operation, worldSize, size, busGiBps }) => ({
      contender,
      operation: OPERATIONS[operation].title,
      ranks: ranksLabel(run, worldSize),
      size,
      busGiBps,
      kind: kindOf(contender),
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
          legend: { symbolType: 'stroke', symbolStrokeWidth: 3 },
          scale: { domain: names, range: names.map((name) => COLORS[name.split('+')[0]]) },
        },
        strokeDash: {
          field: 'kind',
          title: null,
          legend: { symbolType: 'stroke', symbolStrokeColor: '#444', symbolStrokeWidth: 2 },
          scale: { domain: ['exact', 'rival', ...wires], range: DASHES },
        },
      },
    },
    config: { background: 'white', font: 'sans-serif' },
  };
  return new View(parse(compile(spec).spec), { renderer: 'none' }).toSVG();
}
