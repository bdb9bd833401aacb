// The main and the testing entry can be bundled for browsers and contain no module of Node.

import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { describe, expect, it } from 'vitest';

describe('browser bundle', () => {
  it.each([
    '@shardweave/collectives',
    '@shardweave/collectives/shm',
    '@shardweave/collectives/ws',
    '@shardweave/collectives/elastic',
    '@shardweave/collectives/testing',
  ])('%s', async (entry) => {
    const bundled = build({
      stdin: {
        contents: `export * from '${entry}';`,
        resolveDir: fileURLToPath(new URL('.', import.meta.url)),
      },
      bundle: true,
      write: false,
      platform: 'browser',
      format: 'esm',
      conditions: ['@shardweave/source'],
      metafile: true,
      logLevel: 'silent',
    });
    const { metafile } = await bundled; // Bundling fails where a Node module is imported.
    const inputs = Object.keys(metafile.inputs);
    expect(inputs.length).toBeGreaterThan(5);
    // The handshake's HMAC comes from @noble/hashes, because pages loaded over plain http have no
    // crypto.subtle.
    const foreign = inputs.filter((path) => /node_modules\/(?!.*@noble\/hashes)/.test(path));
    expect(foreign).toEqual([]);
  });
});
