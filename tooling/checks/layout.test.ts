// The form of every published package: its six files, and the fields of package.json that users and
// bundlers depend on.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { libraries, publishedPackages, ROOT, trackedFiles } from './workspace.ts';

const SIX = ['README.md', 'package.json', 'tsconfig.json', 'tsup.config.ts', 'src', 'test'];

const packages = publishedPackages().map((one) => [one.shortName, one] as const);

describe.each(packages)('%s', (_, { folder, manifest }) => {
  it('has the six files of every package', () => {
    expect(SIX.filter((name) => !existsSync(join(ROOT, folder, name)))).toEqual([]);
  });

  it('is an ES module for Node 20.19 and later, published openly', () => {
    expect(manifest).toMatchObject({
      type: 'module',
      license: 'MIT',
      engines: { node: '>=20.19' },
      publishConfig: { access: 'public' },
    });
  });

  it('is checked before anything packs it', () => {
    expect(manifest).toHaveProperty('scripts.prepack', 'node ../../tooling/setup/prepack.mjs');
  });
});

describe.each(libraries().map((one) => [one.shortName, one] as const))('%s', (_, { manifest }) => {
  it('has no side effects', () => {
    expect(manifest).toHaveProperty('sideEffects', false);
  });

  it('names the source condition, then types, then code in each of its exports, the browser first', () => {
    const entries = Object.entries(manifest.exports ?? {}).filter(
      ([name]) => name !== './package.json',
    );
    expect(entries.length).toBeGreaterThan(0);
    for (const [name, conditions] of entries) {
      const { browser, ...everywhere } = conditions as Record<string, object>;
      for (const each of browser === undefined ? [everywhere] : [browser, everywhere]) {
        const order = Object.keys(each);
        expect([order[0], order[1]], name).toEqual(['@shardweave/source', 'types']);
      }
      // Conditions are tried in their order, so a `browser` condition after `@shardweave/source`
      // would never be used here.
      expect(Object.keys(conditions as object).indexOf('browser'), name).toBeLessThan(1);
    }
  });
});

it('tests lie in test, and what they share in test/support', () => {
  const beside = trackedFiles().filter(
    (path) =>
      /^(?:packages|apps)\/[^/]+\/test\/[^/]+\.m?ts$/.test(path) && !path.endsWith('.test.ts'),
  );
  expect(beside).toEqual([]);
});
