// The blocks of figures that READMEs may contain, each with its report and its renderer.
import { collectivesBlock, tlsBlock } from './collectives-block.mjs';
import { matmulBlock, overlapBlock, stepBlock } from './engine-blocks.mjs';
import { modelBlock } from './gpu-block.mjs';
import { memoryBlock } from './memory-block.mjs';
import { bucketsBlock, sumsBlock } from './package-blocks.mjs';

const OURS = 'shardweave-native,shardweave-native-1,shardweave-cpu,shardweave-cpu-1';
const CPU = `${OURS},shardweave-plain-1,torch,torch-1,jax-wasm,tfjs-wasm`;
const WEBGPU = 'shardweave-webgpu,jax-webgpu,tfjs-webgpu';

/**
 * `report` is the name of a file in bench/reports without its date, and `command` measures it.
 * @type {Readonly<Record<string, { report: string, command: string, render: (run: any, link:
 * string) => string }>>}
 */
export const BLOCKS = {
  'gpt-step-cpu': {
    report: 'gpt-step-cpu',
    command: `bench/run.mjs --tasks step --engines ${CPU} --rounds 15`,
    render: stepBlock,
  },
  'gpt-step-webgpu': {
    report: 'gpt-step-webgpu',
    command: `bench/run.mjs --tasks step --engines ${WEBGPU} --rounds 10`,
    render: stepBlock,
  },
  matmul: {
    report: 'matmul',
    command: 'bench/run.mjs --tasks matmul --rounds 10',
    render: matmulBlock,
  },
  'gpu-step': {
    report: 'kernels-h100-model',
    command: 'bench/kernels/h100-model.mjs',
    render: modelBlock,
  },
  overlap: {
    report: 'overlap',
    command: 'bench/overlap.mjs --rounds 3 --steps 7',
    render: overlapBlock,
  },
  buckets: { report: 'ddp', command: 'bench/ddp.mjs --rounds 3', render: bucketsBlock },
  'fsdp-memory': { report: 'fsdp-memory', command: 'bench/fsdp-memory.mjs', render: memoryBlock },
  collectives: {
    report: 'collectives-two-cores',
    command: 'bench/collectives.mjs',
    render: collectivesBlock,
  },
  'collectives-tls': {
    report: 'collectives-tls',
    command:
      'bench/collectives.mjs --ops all-gather --sizes 1MiB,16MiB --ranks 2 --transports ws,ws-tls --rivals "" --rounds 25 --no-probes --no-plot',
    render: tlsBlock,
  },
  'dtypes-sums': { report: 'dtypes', command: 'bench/dtypes.mjs', render: sumsBlock },
};
