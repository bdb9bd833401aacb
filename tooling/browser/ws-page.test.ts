// Pages as ranks: the conformance suite between pages and a Node rank, a page that is closed, one
// that is stopped, and pages that were not invited.

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { serveElastic } from '@shardweave/collectives/elastic';
import { conformanceCases, STOP_CASE } from '@shardweave/collectives/testing';
import { connectWsEndpoint, serveRendezvous } from '@shardweave/collectives/ws';
import { build } from 'esbuild';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { bundlePage } from './bundle-page.ts';
import { chromiumPath, launchChromium, newPage } from './launch-chromium.ts';
import { type StaticServer, serveFiles } from './static-server.ts';

const SUITE_MS = 240_000; // about 20 s on two idle cores
/** Heartbeats report silence long before links do, which may be silent for a minute. */
const SILENT = expect.stringMatching(/silent for 4000 ms/);
const SECRET = 'made by the test of pages';
/**
 * Whether pages alone run the cases that pages with a Node rank run, too, whether those are all and
 * not every third one, for only the socket is the page's own, and whether the suite includes a
 * large buffer. That takes four fifths of the suite's time, and its chunks are like those of the
 * 16 MiB that a hidden page sends. The case of a stopped rank is left out always:
 * pages cannot stop themselves, so a test of its own below stops one.
 */
const isLong = process.env.SHARDWEAVE_LONG === '1';
const leftOut = [STOP_CASE, ...(isLong ? [] : ['a buffer above 128 MiB'])];

const { path, reason } = await chromiumPath();

describe.skipIf(path === undefined)(
  `ws in pages of headless Chromium${reason && ` (${reason})`}`,
  () => {
    let browser: Browser;
    let server: StaticServer;
    let pages: Page[];
    /** The port of each job's rendezvous, made by the process that the test names. */
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
      for (const close of closers) {
        close();
      }
    });

    async function openPage(init: () => void = () => {}): Promise<Page> {
      const page = await newPage(browser);
      await page.addInitScript(init);
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

    /** Runs one of three ranks that add up until something ends it. */
    const sum = (page: Page, id: string, rank: number) =>
      page.evaluate((place) => window.wsPage.sumUntilEnd(place), {
        id,
        rank,
        worldSize: 3,
        secret: SECRET,
      });

    /**
     * Resolves when all ranks of the job have added up several times, so that the job is well under
     * way.
     */
    const swing = (page: Page, id: string) =>
      page.waitForFunction((job) => (window.wsPage.numSums[job] ?? 0) >= 20, id);

    const casesOf = (worldSize: number) =>
      conformanceCases.filter(
        ({ name, worldSizes }) => worldSizes.includes(worldSize) && !leftOut.includes(name),
      );

    it('the suite passes between two pages, relayed by a Node process', {
      timeout: SUITE_MS,
    }, async () => {
      const worldSize = 2;
      makePort = standalone;
      const failed: string[] = [];
      const cases = casesOf(worldSize).filter(
        ({ worldSizes }) => isLong || !worldSizes.includes(worldSize + 1),
      );
      for (const { name } of cases) {
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
      expect(cases.length).toBeGreaterThan(10);
    });

    it('the suite passes between a Node rank and two pages', { timeout: SUITE_MS }, async () => {
      const worldSize = 3;
      const listening = new Map<string, (port: number) => void>();
      makePort = (job) => new Promise((resolve) => listening.set(job, resolve));
      const failed: string[] = [];
      const cases = casesOf(worldSize).filter((_, i) => isLong || i % 3 === 0);
      expect(cases.length).toBeGreaterThan(10);
      for (const conformanceCase of cases) {
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
              heartbeat: 'link',
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
    });

    it('sends without a timer of the page, as a hidden page must', {
      timeout: SUITE_MS,
    }, async () => {
      makePort = standalone;
      // Browsers run the timers of hidden pages once a minute. Here those of pages never run, while
      // those of workers do.
      const hide = () => {
        window.setTimeout = (() => 0) as unknown as typeof setTimeout;
        window.setInterval = (() => 0) as unknown as typeof setInterval;
      };
      const hidden = await Promise.all([openPage(hide), openPage(hide)]);
      // One rank makes its worker from the text in the package, the other from a file of the
      // server.
      const workers = [{}, { heartbeatWorker: '/heartbeat-worker.js' }];
      const gathers = hidden.map((page, rank) =>
        page.evaluate((args) => window.wsPage.gather(...args), [
          { id: 'hidden', rank, worldSize: 2, secret: SECRET },
          16 * 2 ** 20,
          workers[rank]!,
        ] as const),
      );
      expect(await Promise.all(gathers)).toEqual([
        [1, 2],
        [1, 2],
      ]);
      await Promise.all(hidden.map((page) => page.close()));
    });

    it('names the page that was closed', { timeout: SUITE_MS }, async () => {
      makePort = standalone;
      const doomed = await openPage();
      const endings = [pages[0]!, pages[1]!].map((page, rank) => sum(page, 'closed', rank));
      sum(doomed, 'closed', 2).catch(() => {}); // its page is gone
      await swing(pages[0]!, 'closed');
      await doomed.close();
      const message = expect.stringMatching(/peer 2 lost/);
      const lost = { code: 'PEER_LOST', originRank: 2, message };
      expect(await Promise.all(endings)).toEqual([lost, lost]);
    });

    it('misses a page that is stopped', { timeout: SUITE_MS }, async () => {
      makePort = standalone;
      const stopped = await openPage();
      const pid = await rendererOf(browser, stopped);
      const endings = [pages[0]!, pages[1]!].map((page, rank) => sum(page, 'stopped', rank));
      sum(stopped, 'stopped', 2).catch(() => {}); // it never learns that the job has ended
      await swing(pages[0]!, 'stopped');
      process.kill(pid, 'SIGSTOP');
      try {
        const lost = { code: 'PEER_LOST', originRank: 2, message: SILENT };
        expect(await Promise.all(endings)).toEqual([lost, lost]);
      } finally {
        process.kill(pid, 'SIGKILL');
      }
    });

    // In the short run pages miss a page, and in faults.test.ts ranks a rank.
    it.runIf(isLong)('misses a Node rank that is stopped', { timeout: SUITE_MS }, async () => {
      const folder = await mkdtemp(join(tmpdir(), 'node-rank-'));
      const script = join(folder, 'rank.mjs');
      await build({
        entryPoints: [fileURLToPath(new URL('page/node-rank.ts', import.meta.url))],
        bundle: true,
        platform: 'node',
        format: 'esm',
        conditions: ['@shardweave/source'],
        external: ['bufferutil', 'utf-8-validate'],
        banner: {
          js: "import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);",
        },
        outfile: script,
      });
      const env = { ...process.env, SECRET, ORIGIN: server.origin };
      const child = fork(script, { env });
      try {
        makePort = async () => ((await once(child, 'message')) as [number])[0];
        const endings = [1, 2].map((rank) => sum(pages[rank]!, 'with a process', rank));
        await swing(pages[1]!, 'with a process');
        child.kill('SIGSTOP');
        const lost = { code: 'PEER_LOST', originRank: 0, message: SILENT };
        expect(await Promise.all(endings)).toEqual([lost, lost]);
      } finally {
        child.kill('SIGKILL');
        await rm(folder, { recursive: true });
      }
    });

    it('pages are members of an elastic job, which goes on when one is closed', async () => {
      const elastic = await serveElastic({
        ...{ min: 1, max: 3, secret: SECRET, settleMs: 100 },
        allowedOrigins: [server.origin],
      });
      const work = (page: Page) =>
        page.evaluate(([port, secret]) => window.wsPage.workElastic(port, secret), [
          elastic.port,
          SECRET,
        ] as const);
      const working = (page: Page, count: number) =>
        page.waitForFunction((wanted) => window.wsPage.numMembers() === wanted, count);
      const closed = await openPage();
      const staying = pages.slice(0, 2);
      const ends = staying.map(work);
      work(closed).catch(() => {}); // it is closed
      await Promise.all([closed, ...staying].map((page) => working(page, 3)));
      await closed.close();
      await Promise.all(staying.map((page) => working(page, 2)));
      await elastic.close('that was all');
      expect(await Promise.all(ends)).toEqual(['that was all', 'that was all']);
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
      const join = (id: string, secret: string, joinTimeoutMs: number) => {
        const place = { id, rank: 0, worldSize: 2, secret };
        return pages[0]!.evaluate(([where, ms]) => window.wsPage.tryToJoin(where, ms), [
          place,
          joinTimeoutMs,
        ] as const);
      };
      // The page is refused again and again until its own limit ends it. A slow machine may need
      // another attempt.
      let stranger = await join('stranger', SECRET, 500);
      while (refusals.length === 0) {
        stranger = await join('stranger', SECRET, 500);
      }
      expect(stranger?.code).toBe('JOIN');
      expect(stranger?.message).toMatch(/nobody listens, or refuses this origin/);
      expect(refusals).toContain(`origin ${server.origin} is not allowed`);
      const guess = await join('guess', 'a guess of some length', SUITE_MS);
      expect(guess?.message).toMatch(/refused by the rendezvous: wrong secret/);
    });
  },
);

/**
 * Finds the process that runs a page: the one that computes while the page does, and no other page
 * does. On a busy machine a short computation does not stand out, so it is repeated until one
 * process stands out twice in a row. One time is not enough, since pages that were just opened
 * compute for a moment too.
 */
async function rendererOf(browser: Browser, page: Page): Promise<number> {
  const session = await browser.newBrowserCDPSession();
  const times = async () => {
    const { processInfo } = await session.send('SystemInfo.getProcessInfo');
    const renderers = processInfo.filter(({ type }) => type === 'renderer');
    return new Map(renderers.map(({ id, cpuTime }) => [id, cpuTime]));
  };
  let last: number | undefined;
  for (let ms = 200; ; ms *= 2) {
    const before = await times();
    await page.evaluate((busyMs) => {
      const end = performance.now() + busyMs;
      while (performance.now() < end) {
        // only the time counts
      }
    }, ms);
    const [first, second] = [...(await times())]
      .map(([id, time]) => ({ id, seconds: time - (before.get(id) ?? 0) }))
      .sort((a, b) => b.seconds - a.seconds);
    const found =
      first!.seconds >= 0.1 && first!.seconds >= 5 * second!.seconds ? first!.id : undefined;
    if (found !== undefined && found === last) {
      await session.detach();
      return found;
    }
    last = found;
  }
}

function buildFiles(): Promise<ReadonlyMap<string, string | Uint8Array>> {
  const pathOf = (path: string) => fileURLToPath(new URL(path, import.meta.url));
  const entries = {
    'ws-page': pathOf('page/ws-page.ts'),
    'heartbeat-worker': pathOf('../../packages/collectives/src/heartbeat-worker-page.ts'),
  };
  return bundlePage(entries, { conditions: ['@shardweave/source'] });
}
