// The packages in a real browser. Headless Chromium runs the conformance suite on every device of a
// page, with and without SharedArrayBuffer, and trains a few steps. WebGPU runs cases with
// the specification's limits and without features: no 16-bit floats, no timestamps, no subgroups.
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { buildPage } from './build-page.ts';
import { chromiumPath, launchChromium, newPage } from './launch-chromium.ts';
import type { SomeCases } from './page/conformance.ts';
import type { PageDevice } from './page/open-backend.ts';
import type { PageModel } from './page/train.ts';
import { type StaticServer, serveFiles } from './static-server.ts';

const isLong = process.env.SHARDWEAVE_LONG === '1';
/**
 * Cases of the queue and a case of some kernels. The software driver of a page needs a tenth of a
 * second to compile a kernel, webgpu-backend.test.ts runs all cases in Node with the same compiler,
 * and in Deno a case of each runs without features. In 16 bits only casts, copies and plain
 * products remain.
 */
const OF_SOME = {
  leftOut:
    '^(?!queue|fill|cast|copy|binary|reduce|softmax|matmul)|^(?!cast|copy|matmul b?f\\d\\d by).*\\bb?f16\\b',
  isFirstOfEach: true,
};
/** The CPU device of a page runs the same kernels in WebAssembly as that of Node. */
const EACH = { leftOut: '^$', isFirstOfEach: true };
/**
 * Names of cases that are left out for further ways to start the CPU device. Only those of the
 * queue and products remain, since its workers run the same source.
 */
const LIKE_THE_OTHERS = { leftOut: '^(?!queue|matmul)' };
/**
 * The limits of a WebGPU device where no larger ones were requested. Views have one alignment less,
 * since a view may begin between the alignments of two bindings.
 */
const SPECIFIED_LIMITS = { maxBufferBytes: 2 ** 28, maxViewBytes: 2 ** 27 - 256 };
const SUITE_MS = 240_000; // the slowest device took under 60 s on two idle cores

const { path, reason } = await chromiumPath();

describe.skipIf(path === undefined)(
  `a page in headless Chromium${reason && ` (${reason})`}`,
  () => {
    let browser: Browser;
    let isolated: Opened;
    let plain: Opened;

    beforeAll(async () => {
      const files = await buildPage();
      browser = await launchChromium(path!);
      isolated = await openPage(browser, files, { isIsolated: true });
      plain = await openPage(browser, files, { isIsolated: false });
    }, SUITE_MS);

    afterAll(async () => {
      await browser?.close();
      await Promise.all([isolated?.server.close(), plain?.server.close()]);
    });

    it('has shared memory only with the isolating headers', async () => {
      const hasShared = () => typeof SharedArrayBuffer === 'function' && crossOriginIsolated;
      expect(await isolated.page.evaluate(hasShared)).toBe(true);
      expect(await plain.page.evaluate(hasShared)).toBe(false);
    });

    it('keeps measured tiles in its database', async () => {
      const table = { 'NN f32 f32 f32 large': 'shared 128x128x8/8' };
      const keep = (tiles: typeof table) => window.shardweavePage.keepTiles(tiles);
      expect(await plain.page.evaluate(keep, table)).toEqual([undefined, table, undefined]);
    });

    describe('the conformance suite', () => {
      const adaptersOwn: Case = ['webgpu', 'isolated', () => isolated];
      const cases: readonly Case[] = [
        ['webgpu-bare', 'isolated', () => isolated, OF_SOME],
        ...(isLong ? [adaptersOwn] : []),
        ['cpu:2', 'isolated', () => isolated, EACH],
        ['cpu-file:2', 'isolated', () => isolated, LIKE_THE_OTHERS],
        ['cpu:1', 'not isolated', () => plain, LIKE_THE_OTHERS],
      ];
      it.each(cases)(
        'passes on %s, %s',
        { timeout: SUITE_MS },
        async (device, _, opened, some = {}) => {
          const { page, problems } = opened();
          const run = ([name, cases]: readonly [PageDevice, SomeCases]) =>
            window.shardweavePage.runConformance(name, cases);
          const given = [device, isLong ? {} : some] as const;
          const { failed, passed, limits } = await page.evaluate(run, given);
          expect(failed).toEqual({});
          if (device === 'webgpu-bare') {
            expect(limits).toEqual(SPECIFIED_LIMITS);
          }
          expect(passed.length).toBeGreaterThan(isLong ? 100 : 8);
          expect(problems).toEqual([]);
        },
      );
    });

    describe('training', () => {
      // On WebGPU a GPT takes six seconds, nearly all of them the driver's compiler.
      const gpt2: [PageModel, PageDevice] = ['gpt2', 'webgpu'];
      const programs: (typeof gpt2)[] = [
        ['layers', 'webgpu'],
        ['gpt2', 'cpu:2'],
        ...(isLong ? [gpt2] : []),
      ];
      it.each(programs)(
        'two sharded ranks lower the loss of %s on %s',
        { timeout: SUITE_MS },
        async (...program) => {
          const { page, problems } = isolated;
          const train = ([model, device]: readonly [PageModel, PageDevice]) =>
            window.shardweavePage.trainFewSteps(device, model);
          const { losses, numAllGathers } = await page.evaluate(train, program);
          expect(numAllGathers).toBeGreaterThan(0);
          expect(losses.at(-1)).toBeLessThan(losses[0]!);
          expect(problems).toEqual([]);
        },
      );
    });
  },
);

type Case = [device: PageDevice, where: string, opened: () => Opened, some?: SomeCases];

type Opened = {
  readonly page: Page;
  readonly server: StaticServer;
  /** Errors that reached no test, because the page threw or printed them. */
  readonly problems: readonly string[];
};

async function openPage(
  browser: Browser,
  files: ReadonlyMap<string, string | Uint8Array>,
  options: { readonly isIsolated: boolean },
): Promise<Opened> {
  const server = await serveFiles(files, options);
  const page = await newPage(browser);
  const problems: string[] = [];
  page.on('pageerror', (error) => problems.push(error.message));
  page.on('console', (message) => {
    if (message.type() === 'error') {
      problems.push(message.text());
    }
  });
  await page.goto(server.origin);
  await page.waitForFunction(() => 'shardweavePage' in window);
  return { page, server, problems };
}
