// What the root README says about speed beside other engines.
import { loadOf } from './record.mjs';
import { table } from './table.mjs';

const JS_RIVALS = ['jax-wasm', 'tfjs-wasm', 'jax-webgpu', 'tfjs-webgpu'];

/**
 * @param run a report of bench/run.mjs with a training step @param {string} link to its Markdown
 */
export function stepBlock(run, link) {
  const { times } = run.rows.find(({ task }) => task === 'step');
  const [own] = fastest(times, (key) => key.startsWith('shardweave'));
  const nameOf = new Map(run.engines.map(({ key, name }) => [key, name]));
  const hasProcessor = Object.values(times).every(({ processorMs }) => processorMs > 0);
  const rows = Object.entries(times).map(([key, { best, median, processorMs }]) => [
    nameOf.get(key),
    best.toFixed(0),
    median.toFixed(0),
    ...(hasProcessor ? [processorMs.toFixed(0)] : []),
    ...(key === own ? ['', ''] : [ratio(best, times[own].best), ratio(median, times[own].median)]),
  ]);
  return [
    table(
      [
        ...['engine', 'best, ms', 'median, ms'],
        ...(hasProcessor ? ['processor, ms'] : []),
        ...['times our best', 'times our median'],
      ],
      rows,
    ),
    ranBy(run, link),
  ].join('\n\n');
}

/**
 * @param run a report of bench/run.mjs with matrix products @param {string} link to its Markdown
 */
export function matmulBlock(run, link) {
  const products = run.rows.filter(({ task }) => task === 'matmul');
  const range = (own, rivals) => {
    const shares = products.flatMap(({ times }) => {
      const theirs = fastest(times, (key) => rivals.includes(key))[1];
      return theirs && times[own] ? [theirs.best / times[own].best] : [];
    });
    return shares.length === 0
      ? '-'
      : `${Math.min(...shares).toFixed(2)} to ${Math.max(...shares).toFixed(2)}`;
  };
  const rate = (key) => {
    const rates = products.flatMap(({ n, times }) =>
      times[key] ? [(2 * n ** 3) / times[key].best / 1e6] : [],
    );
    return `${Math.min(...rates).toFixed(0)} to ${Math.max(...rates).toFixed(0)}`;
  };
  const own = run.engines.filter(({ key }) => key.startsWith('shardweave'));
  return [
    table(
      [
        '',
        'GFLOP/s',
        'times as fast as the better of jax-js and TensorFlow.js',
        'times as fast as PyTorch on the CPU with as many threads',
      ],
      own.map(({ key, name }) => [
        name,
        rate(key),
        range(
          key,
          JS_RIVALS.filter((rival) => rival.endsWith('webgpu') === key.endsWith('webgpu')),
        ),
        key.endsWith('webgpu') ? '-' : range(key, [key.endsWith('-1') ? 'torch-1' : 'torch']),
      ]),
    ),
    `Sizes ${[...new Set(products.map(({ n }) => n))].join(', ')} in the layouts ${[...new Set(products.map(({ layout }) => layout))].join(', ')}, f32: from the least to the most of them, best against best. ${ranBy(run, link)}`,
  ].join('\n\n');
}

/** @param run a report of bench/overlap.mjs @param {string} link to its Markdown */
export function overlapBlock(run, link) {
  const { plain, delayed, calls, delayMs, bareCalls } = run;
  const hidden = (which, numBare) => {
    const exposedMs = delayed[which] - plain[which] - numBare * delayMs;
    return `${(100 * (1 - exposedMs / ((calls - numBare) * delayMs))).toFixed(0)} %`;
  };
  return `With ${delayMs} ms injected into each of ${calls} collectives of a step of ${plain.median.toFixed(0)} ms, ${hidden('best', 0)} of the delay is hidden behind computation by the best steps and ${hidden('median', 0)} by the medians; of the delay that anything can hide, which is all but that of ${bareCalls} collectives, ${hidden('best', bareCalls)} and ${hidden('median', bareCalls)}. ${plain.rounds} steps of each, in turns of runs. ${machineOf(run, link)}`;
}

/** The entry with the best time among those whose key passes `isMeant`. */
function fastest(times, isMeant) {
  const entries = Object.entries(times).filter(([key]) => isMeant(key));
  return entries.sort(([, a], [, b]) => a.best - b.best)[0] ?? [];
}

function ranBy(run, link) {
  return `${run.rounds} interleaved rounds in one run, each engine a process of its own, PyTorch with \`OMP_WAIT_POLICY=PASSIVE\`, its best known setting here. ${machineOf(run, link)}`;
}

function machineOf(run, link) {
  return `${run.date}, ${run.machine}. ${loadOf(run)} ([report](${link}))`;
}

function ratio(a, b) {
  const value = a / b;
  return value >= 10 ? value.toFixed(0) : value.toFixed(2);
}
