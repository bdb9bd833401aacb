// The page in each of its states, at three widths, in light and in dark: no rule of axe is broken,
// and nothing is wider than the screen.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { chromiumPath, launchChromium, newPage } from '../../../tooling/browser/launch-chromium.js';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { Dashboard } from '../src/dashboard/dashboard.js';
import { reportOf } from '../src/output/report.js';
import { RunHistory } from '../src/output/run-history.js';
import { axeViolations } from './support/axe-violations.js';
import { madeRun } from './support/made-run.js';
import { madeLine, makeRun } from './support/made-runs.js';

const { path: chromium, reason } = await chromiumPath();
const LIMIT_MS = 600_000;
const WIDTHS = [390, 1440, 2560];
const LOOKS = WIDTHS.flatMap((width) =>
  (['light', 'dark'] as const).map((colorScheme) => ({ width, colorScheme })),
);

describe.skipIf(chromium === undefined)(
  `the page in headless Chromium${reason && ` (${reason})`}`,
  { timeout: LIMIT_MS },
  () => {
    let browser: Browser;
    let page: Page;
    const problems: string[] = [];

    beforeAll(async () => {
      browser = await launchChromium(chromium!);
      page = await newPage(browser);
      page.on('pageerror', (error) => problems.push(error.message));
      page.on('console', (message) => problems.push(message.text()));
    }, LIMIT_MS);
    afterAll(() => browser?.close());

    /** The problems of a page in all looks. */
    async function problemsOf(url: string): Promise<string[]> {
      for (const { width, colorScheme } of LOOKS) {
        const name = `${width} ${colorScheme}`;
        await page.setViewportSize({ width, height: 900 });
        await page.emulateMedia({ colorScheme });
        await page.goto('about:blank');
        await page.goto(url);
        await page.locator('#loss canvas').waitFor();
        await page.locator('#loss summary').click();
        await page.locator('#loss details tbody tr').first().waitFor();
        problems.push(...(await axeViolations(page)).map((text) => `${name}: ${text}`));
        const excess = await page.evaluate(
          () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
        );
        problems.push(...(excess === 0 ? [] : [`${name}: ${excess} px too wide`]));
      }
      return problems.splice(0);
    }

    const reportOfSome = async (count: number, isEnded: boolean, steps = 700) => {
      const folder = newFolder();
      const runs = Array.from({ length: count }, (_, i) =>
        makeRun(join(folder, `sweep-${i}`), {
          steps,
          config: { lr: i / 1000 },
          events: madeRun(i).filter((record) => record.type === 'header'),
          lineOf: (step) =>
            madeLine(step, {
              loss: 4 / Math.sqrt(step) + i,
              ...(step % 50 === 0 && { validLoss: 3, evalMs: 9 }),
            }),
          ...(isEnded && { end: 'done' }),
        }),
      );
      const file = join(folder, 'page.html');
      writeFileSync(file, await reportOf(runs));
      return pathToFileURL(file).href;
    };

    it('is right while a run is live', async () => {
      const history = new RunHistory();
      for (const record of madeRun(0)) {
        if (record.type !== 'runEnd' && record.type !== 'rankEnd') {
          history.add(record);
        }
      }
      const live = await Dashboard.open({ port: 0, history, env: {} });
      expect(await problemsOf(live.url)).toEqual([]);
      expect(await page.locator('.title .badge').textContent()).toBe('training');
      await page.goto('about:blank');
      await live.close();
    });

    it.each([
      ['of a finished run', 1, true],
      ['of a killed run', 1, false],
      ['of two runs', 2, true],
      ['of twelve runs', 12, true],
    ] as const)('is right where it is %s', async (_, count, isEnded) => {
      expect(await problemsOf(await reportOfSome(count, isEnded))).toEqual([]);
      expect(await page.locator('.badge').first().textContent()).toBe(isEnded ? 'done' : 'killed');
    });

    it('is right where a run has 10,000 steps', async () => {
      expect(await problemsOf(await reportOfSome(1, true, 10_000))).toEqual([]);
      expect(await page.locator('#loss .readout').textContent()).toBe('mean over 200 steps');
    });
  },
);
