// What the READMEs of single packages say about their speed.
import { loadOf } from './record.mjs';
import { table } from './table.mjs';

const MIB = 2 ** 20;

/** @param run a report of bench/ddp.mjs @param {string} link to its Markdown */
export function bucketsBlock(run, link) {
  const { alone, step, torch, torchVersion, transports, worldSize } = run;
  const of = (a, b) => `${(a.best / b.best).toFixed(2)} / ${(a.median / b.median).toFixed(2)}`;
  const ms = ({ best, median }) => `${best.toFixed(0)} / ${median.toFixed(0)}`;
  const exposed = (transport, mode) => ({
    best: step[transport][mode].best - step[transport].local.best,
    median: step[transport][mode].median - step[transport].local.median,
  });
  const row = (title, format) => [title, ...transports.map(format)];
  const rows = [
    row('all buckets, ms', (name) => ms(alone[name].bucketed)),
    row('over an all-reduce for each parameter', (name) =>
      of(alone[name].bucketed, alone[name].naive),
    ),
    ...(torch
      ? [row(`over PyTorch ${torchVersion} on Gloo`, (name) => of(alone[name].bucketed, torch))]
      : []),
    row('a step without communication, ms', (name) => ms(step[name].local)),
    row('what it takes longer with buckets, ms', (name) => ms(exposed(name, 'bucketed'))),
    row('the same over an all-reduce for each', (name) =>
      of(exposed(name, 'bucketed'), exposed(name, 'naive')),
    ),
  ];
  return [
    table(['', ...transports], rows),
    `${worldSize} ranks, ${(run.bytes / MIB).toFixed(0)} MiB of gradients of a small GPT in ${run.numBuckets} buckets (cap ${run.bucketCapBytes / MIB} MiB); best / median of ${run.rounds * run.steps} steps, or the ratio of the bests / of the medians. The upper rows are communication alone, with everything on the host; the lower ones a step of the GPT on one wasm thread a rank. ${run.date}, ${run.machine}. ${loadOf(run)} ([report](${link}))`,
  ].join('\n\n');
}

/** @param run a report of bench/dtypes.mjs @param {string} link to its Markdown */
export function sumsBlock(run, link) {
  const rate = ({ best, median }) =>
    [best, median].map((ms) => (run.inputBytes / 2 ** 30 / (ms / 1000)).toFixed(1)).join(' / ');
  return [
    table(
      ['GiB/s of input', ...run.contenders],
      run.rows.map(({ dtype, times }) => [
        dtype,
        ...run.contenders.map((name) => (times[name] ? rate(times[name]) : '-')),
      ]),
    ),
    `Sums of ${run.numParts} parts of ${run.inputBytes / run.numParts / MIB} MiB on one core; best / median of ${run.rounds} interleaved rounds. ${run.date}, ${run.machine}. ${loadOf(run)} ([report](${link}))`,
  ].join('\n\n');
}
