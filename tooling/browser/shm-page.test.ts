// The shm transport between web workers of a real page: the conformance suite, a worker that is
// ended, what a page that is not cross-origin isolated is told, and the example for pages.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { printedLosses } from '../test-kit/printed-losses.ts';
import { bundlePage } from './bundle-page.ts';
import { chromiumPath, launchChromium, newPage } from './launch-chromium.ts';
import { type StaticServer, serveFiles } from './static-server.ts';

const SUITE_MS = 120_000; // 5 s on two idle cores

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

    it('learns a sentence on two workers in examples/page, as its server gives it out', async () => {
      const serve = fileURLToPath(new URL('../../examples/page/serve.mjs', import.meta.url));
      const server = spawn(process.execPath, [serve, '0'], {
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      try {
        const [line] = await once(server.stdout, 'data');
        const page = await newPage(browser);
        await page.goto(String(line).trim());
        const log = page.locator('#log');
        await page.waitForFunction(
          () => document.querySelector('#log')!.textContent.split('\n').length > 40,
        );
        const lines = (await log.textContent())!.split('\n');
        for (const rank of [0, 1]) {
          const losses = printedLosses(lines, rank);
          expect(losses, lines.join('\n')).toHaveLength(20);
          expect(losses.at(-1)).toBeLessThan(losses[0]! / 2);
        }
        await page.close();
      } finally {
        server.kill();
        await once(server, 'exit');
      }
    });
  },
);

function buildFiles(): Promise<ReadonlyMap<string, string | Uint8Array>> {
  const fileOf = (name: string) => fileURLToPath(new URL(`page/${name}.ts`, import.meta.url));
  const entries = { 'shm-page': fileOf('shm-page'), 'shm-worker': fileOf('shm-worker') };
  return bundlePage(entries, { conditions: ['@shardweave/source'] });
}
