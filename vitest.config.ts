import { defineConfig } from 'vitest/config';

export default defineConfig({
  resolve: { conditions: ['@shardweave/source'] },
  ssr: { resolve: { conditions: ['@shardweave/source'] } },
  test: {
    include: ['packages/*/test/**/*.test.ts', 'apps/*/test/**/*.test.ts', 'tooling/**/*.test.ts'],
    pool: 'forks',
    maxWorkers: 2,
    testTimeout: 60_000,
    hookTimeout: 60_000,
  },
});
