// The parts of a run on a lent GPU, those first that are worth most if it breaks off. Each is a
// process. `seconds` is what an H200 takes by the model of bench/kernels and guesses about
// compilation; nobody has run it. Limits are such that three commands of eight minutes suffice.

import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The folder that has bench/, tooling/ and the trainer: the pack's, laid out as the repository. */
const APP = fileURLToPath(new URL('../../', import.meta.url));
const HERE = dirname(fileURLToPath(import.meta.url));

/** The seconds that one command may take. GPUs are lent for ten minutes at a time. */
export const COMMAND_SECONDS = 480;
/** The limit of each part on a driver on the CPU, which compiles for minutes. */
export const SOFTWARE_SECONDS = 600;

/**
 * @typedef {{ rows: string, scratch: string, isTiny: boolean, python: string }} Where where a part
 * appends its rows, may write files, and finds PyTorch
 * @type {readonly { name: string, says: string, command: 1 | 2 | 3, seconds: number, limit: number,
 * args: (where: Where) => string[] }[]}
 */
export const PARTS = [
  {
    name: 'probe',
    says: 'the adapter, PyTorch, ten conformance cases, a copy, a product of each dtype, untuned',
    ...{ command: 1, seconds: 50, limit: 90 },
    args: (where) => [join(HERE, 'probe.mjs'), ...flagsOf(where)],
  },
  {
    name: 'products',
    says: 'a copy and products beside eager PyTorch, in three dtypes, with measured tiles',
    ...{ command: 1, seconds: 120, limit: 240 },
    args: (where) => bench(where, 'copy,products'),
  },
  {
    name: 'attention',
    says: 'attention and its gradients beside eager PyTorch, in three dtypes',
    ...{ command: 1, seconds: 50, limit: 120 },
    args: (where) => bench(where, 'attention'),
  },
  {
    name: 'steps',
    says: 'steps of GPT-2 124M and SmolLM2 135M beside eager PyTorch, in three precisions',
    ...{ command: 2, seconds: 100, limit: 200 },
    args: (where) => bench(where, 'steps'),
  },
  {
    name: 'conformance',
    says: 'all conformance cases of the kernels, compared with float64',
    ...{ command: 2, seconds: 150, limit: 270 },
    args: (where) => [join(HERE, 'conformance.mjs'), ...flagsOf(where)],
  },
  ...['fp32', 'fp16'].map((precision) => ({
    name: `train-${precision}`,
    says: `fifty steps of GPT-2 124M in ${precision}, with tiles that the run measures first`,
    ...{ command: 3, seconds: 50, limit: 90 },
    args: (where) => {
      const large = ['--model', 'gpt2', '--batch', '8', '--seq', '1024'];
      const model = where.isTiny ? [] : large;
      return training(where, [...model, '--strategy', 'single', '--precision', precision]);
    },
  })),
  {
    name: 'train-fsdp',
    says: 'fifty steps of a small model over two ranks on the GPU, in fp16',
    ...{ command: 3, seconds: 30, limit: 60 },
    args: (where) => {
      const ranks = ['--strategy', 'fsdp', '--ranks', '2', '--transport', 'memory'];
      return training(where, [...ranks, '--precision', 'fp16']);
    },
  },
  {
    name: 'compiled',
    says: 'the attention and steps of compiled PyTorch alone',
    ...{ command: 3, seconds: 220, limit: 240 },
    args: (where) => bench(where, 'steps,attention', ['--engines', 'compiled']),
  },
];

function flagsOf({ rows, isTiny, python }) {
  return ['--rows', rows, '--scale', isTiny ? 'tiny' : 'full', '--python', python];
}

function bench(where, parts, more = []) {
  return [join(APP, 'bench/hardware.mjs'), '--parts', parts, ...flagsOf(where), ...more];
}

function training({ rows, scratch, isTiny }, flags) {
  const steps = ['--steps', isTiny ? '5' : '50', '--device', 'webgpu'];
  return [join(HERE, 'training.mjs'), rows, scratch, ...flags, ...steps];
}

/** The table of the parts, with their estimates and limits. */
export function listParts() {
  const sumOf = (key, command) =>
    PARTS.filter((part) => part.command === command).reduce((sum, part) => sum + part[key], 0);
  const lines = PARTS.map(({ name, says, command, seconds, limit }) =>
    lineOf([name, command, `${seconds} s`, `${limit} s`, says]),
  );
  const commands = [1, 2, 3].map((command) => {
    const names = PARTS.filter((part) => part.command === command).map(({ name }) => name);
    return `command ${command}, ${sumOf('seconds', command)} s by the model, ${sumOf('limit', command)} s at most: --only ${names.join(',')}`;
  });
  const head = lineOf(['part', 'command', 'model', 'limit', 'what']);
  return [head, ...lines, '', ...commands].join('\n');
}

function lineOf([name, command, seconds, limit, says]) {
  const figures = [String(command).padEnd(7), seconds.padStart(5), limit.padStart(5)];
  return [name.padEnd(11), ...figures, says].join('  ');
}
