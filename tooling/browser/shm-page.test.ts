// The shm transport between web workers of a real page: the conformance suite, a worker that is
// ended, and what a page is told that is not cross-origin isolated.
import { fileURLToPath } from 'node:url';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { bundlePage } from './bundle-page.ts';
import { chromiumPath, launchChromium, newPage } from './launch-chromium.ts';
import { type StaticServer, serveFiles } from './static-server.ts';

const SUITE_MS = 120_000; // 5 s alone on two cores

const { path, reason } = await chromiumPath();

describe.skipIf(path === undefined)(
  `shm between web workers of headless Chromium${reason && ` (${reason})`}`,
  () => {
    let browser: Browser;
    let files: ReadonlyMap<string, string | Uint8Array>;
    const servers: StaticServer[] = [];

    beforeAll(async () => {
      files = await buildFiles();
      browser = await launchChromium(path!);
    }, SUITE_MS);

    afterAll(async () => {
      await browser?.close();
      await Promise.all(servers.map((server) => server.close()));
    });

    async function open(options: { readonly isIsolated: boolean }): Promise<Page> {
      const server = await serveFiles(files, options);
      servers.push(server);
      const page = await newPage(browser);
      await page.goto(server.origin);
      await page.waitForFunction(() => 'shmPage' in window);
      return page;
    }

    it('passes the conformance suite', { timeout: SUITE_MS }, async () => {
      const page = await open({ isIsolated: true });
      const result = await page.evaluate(() => window.shmPage.runConformance(2));
      expect(result.failed).toEqual([]);
      expect(result.numCases).toBeGreaterThan(10);
      await page.close();
    });

    it('names the worker that was ended', async () => {
      const page = await open({ isIsolated: true });
      const endings = await page.evaluate(() => window.shmPage.endOne());
      const lost = { type: 'ended', code: 'PEER_LOST', originRank: 2 };
      expect(endings).toEqual([lost, lost]);
      await page.close();
    });

    it('says which headers a page lacks that has no shared memory', async () => {
      const page = await open({ isIsolated: false });
      const error = await page.evaluate(() => window.shmPage.whyNot());
      expect(error?.code).toBe('JOIN');
      expect(error?.message).toMatch(/Cross-Origin-Opener-Policy.*Cross-Origin-Embedder-Policy/);
      await page.close();
    });
  },
);

function buildFiles(): Promise<ReadonlyMap<string, string | Uint8Array>> {
  const fileOf = (name: string) => fileURLToPath(new URL(`page/${name}.ts`, import.meta.url));
  const entries = { 'shm-page': fileOf('shm-page'), 'shm-worker': fileOf('shm-worker') };
  return bundlePage(entries, { conditions: ['@shardweave/source'] });
}
