// Pages as ranks: the conformance suite between pages that a Node process joins, between pages and a
// Node rank, a page that is closed, and pages that nobody invited.

import { fileURLToPath } from 'node:url';
import { conformanceCases } from '@shardweave/collectives/testing';
import { connectWsEndpoint, serveRendezvous } from '@shardweave/collectives/ws';
import { build } from 'esbuild';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { chromiumPath, launchChromium } from './launch-chromium.ts';
import { type StaticServer, serveFiles } from './static-server.ts';

const SUITE_MS = 240_000; // about 20 s alone on two cores
const SECRET = 'made by the test of pages';

const { path, reason } = await chromiumPath();

describe.skipIf(path === undefined)(
  `ws in pages of headless Chromium${reason && ` (${reason})`}`,
  () => {
    let browser: Browser;
    let server: StaticServer;
    let pages: Page[];
    /** Port of each job's rendezvous, made by whoever the test says. */
    const ports = new Map<string, Promise<number>>();
    let makePort: (job: string, worldSize: number) => Promise<number>;
    const closers: (() => void)[] = [];

    beforeAll(async () => {
      browser = await launchChromium(path!);
      server = await serveFiles(await buildFiles(), { isIsolated: false });
      pages = await Promise.all([openPage(), openPage(), openPage()]);
    }, SUITE_MS);

    afterAll(async () => {
      await browser?.close();
      await server?.close();
      for (const close of closers) close();
    });

    async function openPage(): Promise<Page> {
      const page = await browser.newPage();
      await page.exposeFunction('portOf', portOf);
      await page.goto(server.origin);
      await page.waitForFunction(() => 'wsPage' in window);
      return page;
    }

    function portOf(job: string, worldSize: number): Promise<number> {
      const port = ports.get(job) ?? makePort(job, worldSize);
      ports.set(job, port);
      return port;
    }

    async function standalone(_job: string, worldSize: number): Promise<number> {
      const allowedOrigins = [server.origin];
      const rendezvous = await serveRendezvous({ worldSize, secret: SECRET, allowedOrigins });
      rendezvous.formed.catch(() => {}); // each test says what it expects
      closers.push(() => rendezvous.close());
      return rendezvous.port;
    }

    const casesOf = (worldSize: number) =>
      conformanceCases.filter(({ worldSizes }) => worldSizes.includes(worldSize));

    it.each([2])(
      'the suite passes between %i pages, relayed by a Node process',
      { timeout: SUITE_MS },
      async (worldSize) => {
        makePort = standalone;
        const failed: string[] = [];
        for (const { name } of casesOf(worldSize)) {
          const run = (page: Page, rank: number) =>
            page.evaluate(([what, place]) => window.wsPage.runCase(what, place), [
              name,
              { id: `pages ${name} ${worldSize}`, rank, worldSize, secret: SECRET },
            ] as const);
          const results = await Promise.all(pages.slice(0, worldSize).map(run));
          failed.push(
            ...results.flatMap((result) => (result === undefined ? [] : `${name}: ${result}`)),
          );
        }
        expect(failed).toEqual([]);
        expect(casesOf(worldSize).length).toBeGreaterThan(10);
      },
    );

    it.each([3])(
      'the suite passes between a Node rank and pages, %i ranks in all',
      { timeout: SUITE_MS },
      async (worldSize) => {
        const listening = new Map<string, (port: number) => void>();
        makePort = (job) => new Promise((resolve) => listening.set(job, resolve));
        const failed: string[] = [];
        for (const conformanceCase of casesOf(worldSize)) {
          const { name } = conformanceCase;
          const id = `node ${name} ${worldSize}`;
          let numJobs = 0;
          const harness = {
            name: 'ws in Node, with pages',
            worldSizes: [worldSize],
            create: async (size: number, options = {}) => {
              const job = `${id}/${numJobs++}`;
              void portOf(job, size);
              const { group, endpoint } = await connectWsEndpoint({
                ...options,
                rank: 0,
                worldSize: size,
                port: 0,
                secret: SECRET,
                allowedOrigins: [server.origin],
                onListen: (port) => listening.get(job)!(port),
              });
              return [{ group, kill: () => endpoint.terminate() }];
            },
          };
          const own = conformanceCase.run(harness, worldSize).then(
            () => undefined,
            (error: Error) => String(error.stack),
          );
          const others = pages
            .slice(1, worldSize)
            .map((page, i) =>
              page.evaluate(([what, place]) => window.wsPage.runCase(what, place), [
                name,
                { id, rank: i + 1, worldSize, secret: SECRET },
              ] as const),
            );
          const results = await Promise.all([own, ...others]);
          failed.push(
            ...results.flatMap((result) => (result === undefined ? [] : `${name}: ${result}`)),
          );
        }
        expect(failed).toEqual([]);
      },
    );

    it('names the page that was closed, within seconds', { timeout: SUITE_MS }, async () => {
      makePort = standalone;
      const doomed = await openPage();
      const sum = (page: Page, rank: number) =>
        page.evaluate((place) => window.wsPage.sumUntilEnd(place), {
          id: 'closed',
          rank,
          worldSize: 3,
          secret: SECRET,
        });
      const endings = [pages[0]!, pages[1]!].map((page, rank) => sum(page, rank));
      sum(doomed, 2).catch(() => {}); // its page is gone
      await new Promise((resolve) => setTimeout(resolve, 1500));
      const start = performance.now();
      await doomed.close();
      const lost = { code: 'PEER_LOST', originRank: 2 };
      expect(await Promise.all(endings)).toEqual([lost, lost]);
      expect(performance.now() - start).toBeLessThan(5000);
    });

    it('turns away a page whose origin is not allowed, and one without the secret', async () => {
      const refusals: string[] = [];
      makePort = async (job, worldSize) => {
        const rendezvous = await serveRendezvous({
          worldSize,
          secret: SECRET,
          allowedOrigins: job === 'stranger' ? [] : [server.origin],
          onRefused: ({ reason: why }) => refusals.push(why),
        });
        rendezvous.formed.catch(() => {});
        closers.push(() => rendezvous.close());
        return rendezvous.port;
      };
      const join = (id: string, secret: string) =>
        pages[0]!.evaluate((place) => window.wsPage.tryToJoin(place, 500), {
          id,
          rank: 0,
          worldSize: 2,
          secret,
        });
      const stranger = await join('stranger', SECRET);
      expect(stranger?.code).toBe('JOIN');
      expect(stranger?.message).toMatch(/nobody listens, or refuses this origin/);
      expect(refusals).toContain(`origin ${server.origin} is not allowed`);
      const guess = await join('guess', 'a guess of some length');
      expect(guess?.message).toMatch(/refused by the rendezvous: wrong secret/);
    });
  },
);

async function buildFiles(): Promise<ReadonlyMap<string, string | Uint8Array>> {
  const { outputFiles } = await build({
    entryPoints: [fileURLToPath(new URL('page/ws-page.ts', import.meta.url))],
    outdir: '/',
    bundle: true,
    format: 'esm',
    platform: 'browser',
    target: 'es2022',
    conditions: ['@shardweave/source'],
    write: false,
    logLevel: 'silent',
  });
  const html =
    '<!doctype html><meta charset="utf-8"><title>ws</title><link rel="icon" href="data:,">' +
    '<script type="module" src="/ws-page.js"></script>';
  return new Map<string, string | Uint8Array>([
    ['/index.html', html],
    ['/ws-page.js', outputFiles[0]!.contents],
  ]);
}
