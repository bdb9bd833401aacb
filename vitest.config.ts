// All tests of the workspace in one run, against the packages' sources (the export condition
// `@shardweave/source`). Files named `*.long.test.ts` run only with SHARDWEAVE_LONG=1, which
// `npm run test:long` sets.
import { configDefaults, defineConfig } from 'vitest/config';
import { LongestFirst } from './tooling/vitest/longest-first.ts';
import { PlainReporter } from './tooling/vitest/plain-reporter.ts';

const isLong = process.env.SHARDWEAVE_LONG === '1';

export default defineConfig({
  resolve: { conditions: ['@shardweave/source'] },
  ssr: { resolve: { conditions: ['@shardweave/source'] } },
  test: {
    include: ['packages/*/test/**/*.test.ts', 'apps/*/test/**/*.test.ts', 'tooling/**/*.test.ts'],
    exclude: [...configDefaults.exclude, ...(isLong ? [] : ['**/*.long.test.ts'])],
    setupFiles: ['tooling/vitest/no-console.ts'],
    reporters: ['default', new PlainReporter()],
    pool: 'forks',
    maxWorkers: 2,
    sequence: { sequencer: LongestFirst },
    testTimeout: 60_000,
    hookTimeout: 60_000,
  },
});
