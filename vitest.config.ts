// All tests of the workspace in one run, against the packages' sources (the export condition
// `@shardweave/source`). Files named `*.long.test.ts` run only with SHARDWEAVE_LONG=1, which
// `npm run test:long` sets.
//
// Files of `apart` come first, and have a process each: they start processes or browsers, catch
// signals, count sockets or bytes. Files of `together` run in one process after another, with what
// the packages and the engine's kernels have warmed up: most take a tenth of a second, and a
// process of their own would take four.
import { configDefaults, defineConfig } from 'vitest/config';
import { madeModulesForVite } from './tooling/tsup/made-modules.ts';
import { keptModules } from './tooling/vitest/kept-modules.ts';
import { LongestFirst } from './tooling/vitest/longest-first.ts';
import { PlainReporter } from './tooling/vitest/plain-reporter.ts';

// Relaxed SIMD as later versions of Node have it, so that the CPU device's products are fused in
// all of them. And a function is optimized when it has run seven times as long as usual, with less
// of others in it: a test is over soon, and V8's optimizing compiler took a fifth of all tests'
// processor time. Later versions have no such budget.
const V8_FLAGS = process.versions.node.startsWith('20.')
  ? [
      '--experimental-wasm-relaxed-simd',
      '--interrupt-budget=500000',
      '--max-inlined-bytecode-size-cumulative=300',
    ]
  : [];
const isLong = process.env.SHARDWEAVE_LONG === '1';
const TOGETHER = [
  'examples/test/*.test.ts',
  'packages/{checkpoint,ddp-buckets,dtypes,fsdp,memory-tracker,nn,offload,tensor-core}/test/**/*.test.ts',
  'packages/collectives/test/!(attacked-job|blame|elastic-processes|elastic-processes.long|elastic-shm|elastic-threads.long|faults|kubernetes-example|launch-process|mpi|mpi.long|shm-threads|ws-fuzz|ws-wire).test.ts',
  'packages/gguf/test/!(llama-cpp).test.ts',
  'packages/onnx/test/!(transformers-js.long).test.ts',
  'packages/shard-store/test/!(directory|disk-failure|owners).test.ts',
  'tooling/checks/!(faces|packages|tree).test.ts',
  'tooling/gpu/!(run-parts).test.ts',
  'tooling/{one-hash,tokenizer}/*.test.ts',
  'tooling/vitest/kept-modules.test.ts',
  'apps/trainer/test/!(command|dashboard-dir.long|dashboard-index|dashboard-page|elastic-changes.long|elastic-run|elastic-run.long|fine-tune|killed-runs|killed-runs.long|launch|mpi|onnx.long|page-states.long|run-end|run-end.long|text-size.long|webgpu-losses).test.ts',
];

export default defineConfig({
  plugins: [madeModulesForVite, keptModules],
  resolve: { conditions: ['@shardweave/source'] },
  ssr: { resolve: { conditions: ['@shardweave/source'] } },
  test: {
    exclude: [...configDefaults.exclude, ...(isLong ? [] : ['**/*.long.test.ts'])],
    globalSetup: ['tooling/vitest/temporary-root.ts', 'tooling/vitest/generate-kernels.ts'],
    setupFiles: [
      'tooling/vitest/equal-arrays.ts',
      'tooling/vitest/no-console.ts',
      'tooling/vitest/token-cache.ts',
    ],
    reporters: ['default', new PlainReporter()],
    pool: 'forks',
    execArgv: V8_FLAGS,
    maxWorkers: 2,
    sequence: { sequencer: LongestFirst },
    experimental: { fsModuleCache: true },
    testTimeout: 60_000,
    hookTimeout: 60_000,
    projects: [
      {
        extends: true,
        test: {
          name: 'together',
          isolate: false,
          sequence: { groupOrder: 1 },
          include: TOGETHER,
        },
      },
      {
        extends: true,
        test: {
          name: 'apart',
          // Half of their time they wait for processes, silence and browsers.
          maxWorkers: isLong ? 2 : 3,
          sequence: { groupOrder: 0 },
          include: [
            'packages/*/test/**/*.test.ts',
            'apps/*/test/**/*.test.ts',
            'tooling/**/*.test.ts',
          ],
          exclude: TOGETHER,
        },
      },
    ],
  },
});
