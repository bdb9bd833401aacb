// The page of a folder of runs in headless Chromium: its table, the runs that are chosen from it,
// and a run at its own address. All tests share one browser, one page and one folder.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { chromiumPath, launchChromium, newPage } from '../../../tooling/browser/launch-chromium.js';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { Dashboard } from '../src/dashboard/dashboard.js';
import { RunsDashboard } from '../src/dashboard/runs-dashboard.js';
import { RunHistory } from '../src/output/run-history.js';
import { axeViolations } from './support/axe-violations.js';
import { addLines, madeLine, makeRun } from './support/made-runs.js';

const { path: chromium, reason } = await chromiumPath();
const isLong = process.env.SHARDWEAVE_LONG === '1';
const LIMIT_MS = 120_000;
const EVIL = '<img src=x onerror="window.isTaken=true">';

describe.skipIf(chromium === undefined)(
  `the page of a folder in headless Chromium${reason && ` (${reason})`}`,
  { timeout: LIMIT_MS },
  () => {
    let browser: Browser;
    let page: Page;
    let shown: RunsDashboard;
    let folder: string;
    const problems: string[] = [];

    beforeAll(async () => {
      browser = await launchChromium(chromium!);
      page = await newPage(browser);
      page.on('pageerror', (error) => problems.push(error.message));
      page.on('console', (message) => problems.push(message.text()));
      folder = newFolder();
      const lossOf = (loss: number) => (step: number) =>
        madeLine(step, { loss: loss - step / 100, ...(step % 10 === 0 && { validLoss: loss }) });
      makeRun(join(folder, 'sweep/low'), { config: { lr: 1e-4 }, end: 'done', lineOf: lossOf(3) });
      makeRun(join(folder, 'sweep/high'), { config: { lr: 1e-2, data: EVIL }, lineOf: lossOf(1) });
      makeRun(join(folder, EVIL), {
        config: { lr: 1e-3 },
        end: 'stopped',
        lineOf: (step) => ({
          ...lossOf(2)(step),
          ...{ wireBytes: 0, collectiveMs: 0, exposedMs: 0 },
        }),
      });
      shown = await RunsDashboard.open(folder, { port: 0, env: {} });
    }, LIMIT_MS);
    afterAll(async () => {
      await browser?.close();
      await shown?.close();
    });
    afterEach(() => {
      expect(problems.splice(0)).toEqual([]);
    });

    const names = () => page.locator('table.runs tbody a').allTextContents();
    const open = async () => {
      await page.goto('about:blank');
      await page.goto(shown.url);
      await page.locator('table.runs tbody tr').nth(2).waitFor();
    };
    /** The cells of a run by the heads of their columns. */
    const cellsOf = async (name: string) => {
      const heads = await page.locator('table.runs thead th').allTextContents();
      const cells = await page
        .locator('table.runs tbody tr', { has: page.getByRole('link', { name, exact: true }) })
        .locator('th, td')
        .allTextContents();
      return Object.fromEntries(heads.map((head, i) => [head, cells[i]]));
    };

    it('has a row of each run with the settings that differ, in the order that is asked for', async () => {
      await open();
      expect(await cellsOf('sweep/low')).toMatchObject({
        ...{ State: 'done', Step: '20/100', Loss: '2.8000', lr: '0.0001', data: '\u2013' },
      });
      expect(await cellsOf('sweep/high')).toMatchObject({
        ...{ State: 'killed', data: '<img src=x\u2026ndow.isTaken=true">' },
      });
      const head = page.locator('th', { has: page.getByRole('button', { name: 'Loss' }) });
      await page.getByRole('button', { name: 'Loss' }).click();
      expect(await names()).toEqual(['sweep/high', EVIL, 'sweep/low']);
      expect(await head.getAttribute('aria-sort')).toBe('ascending');
      await page.keyboard.press('Enter'); // The button has kept the focus.
      expect(await names()).toEqual(['sweep/low', EVIL, 'sweep/high']);
      expect(await head.getAttribute('aria-sort')).toBe('descending');
      await page.getByLabel('Filter').fill('sweep done');
      expect(await names()).toEqual(['sweep/low']);
      expect(await page.getByRole('button', { name: 'lr' }).count()).toBe(1); // differs over all
      expect(await page.evaluate(() => 'isTaken' in window)).toBe(false);
      expect(await page.locator('img').count()).toBe(0);
    });

    it('draws the chosen runs over each other, as they go on, and remembers them', async () => {
      await open();
      await page.getByRole('checkbox', { name: 'Draw sweep/low' }).check();
      await page.getByRole('checkbox', { name: 'Draw sweep/high' }).check();
      const legend = page.locator('#loss .legend');
      await legend.filter({ hasText: 'sweep/high' }).filter({ hasText: 'sweep/low' }).waitFor();
      const entries = ['sweep/low2.8000 / 3.0000', 'sweep/high0.8000 / 1.0000'];
      expect(await legend.locator('li').allTextContents()).toEqual([
        ...[...entries, 'training / validation'],
      ]);
      await legend.getByRole('button', { name: 'sweep/low' }).click(); // hides both of its lines
      expect(await legend.locator('[aria-pressed="false"]').count()).toBe(1);
      addLines(join(folder, 'sweep/high'), 'metrics.jsonl', [madeLine(21, { loss: 0.125 })]);
      await legend.locator('data[value="0.125"]').waitFor();
      await expect.poll(async () => (await cellsOf('sweep/high')).Loss).toBe('0.1250');
      await page.reload();
      await legend.filter({ hasText: 'sweep/high' }).filter({ hasText: 'sweep/low' }).waitFor();
      await page.getByRole('button', { name: 'Tokens/s' }).click();
      makeRun(join(folder, 'late'), { steps: 1, config: { lr: 5 } });
      await expect.poll(names).toContain('late');
      expect(await page.locator('th[aria-sort="ascending"]').textContent()).toBe('Tokens/s');
      await page.getByRole('checkbox', { name: 'Draw sweep/low' }).uncheck();
      await page.getByRole('checkbox', { name: 'Draw sweep/high' }).uncheck();
      await page.locator('#loss').waitFor({ state: 'detached' });
    });

    // In the short run dashboard-page.test.ts has dark.
    const schemes = ['light', 'dark'] as const;
    it.each(schemes.slice(0, isLong ? 2 : 1))(
      'breaks no rule of axe in %s',
      async (colorScheme) => {
        await page.emulateMedia({ colorScheme });
        await open();
        expect(await axeViolations(page)).toEqual([]);
      },
    );

    it('fits a phone, where the table scrolls within itself', async () => {
      await page.setViewportSize({ width: 390, height: 740 });
      await open();
      const [inner, content] = await page.evaluate(() => [
        document.documentElement.clientWidth,
        document.documentElement.scrollWidth,
      ]);
      expect(content).toBe(inner);
      await page.setViewportSize({ width: 1280, height: 800 });
    });

    it('leads to a page of each run, and back', async () => {
      await open();
      await page.getByRole('link', { name: EVIL }).click();
      await page.locator('#loss .legend').waitFor();
      expect(await page.locator('#index').textContent()).toBe(`All runs / ${EVIL}`);
      expect(await page.locator('.title .badge').textContent()).toBe('stopped');
      expect(await page.locator('#wire:visible, #communication:visible').count()).toBe(0);
      await page.getByRole('link', { name: 'All runs' }).click();
      await page.locator('table.runs').waitFor();
    });

    it('says at the end of a run where its page stays', async () => {
      const history = new RunHistory();
      const live = await Dashboard.open({ port: 0, history, env: {} });
      await page.goto(live.url);
      await page.locator('#top .badge').waitFor();
      const report = join(folder, 'report.html');
      writeFileSync(report, '');
      live.send({ type: 'runEnd', end: 'done', atMs: 9, report });
      const message = page.locator('.message.told', { hasText: `${report} is this same page` });
      await message.waitFor();
      await live.close();
      await page.locator('.message.told').waitFor();
      await page.goto('about:blank');
    });
  },
);
