// The dashboard page runs in headless Chromium, from a running command and from a report on disk.
// All tests share one browser and one page.

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { Browser, Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { chromiumPath, launchChromium, newPage } from '../../../tooling/browser/launch-chromium.js';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { Dashboard } from '../src/dashboard/dashboard.js';
import { TOKEN_VARIABLE } from '../src/dashboard/token.js';
import { reportOf } from '../src/output/report.js';
import { RunDirectory } from '../src/output/run-directory.js';
import { RunHistory } from '../src/output/run-history.js';
import type { StepLine } from '../src/output/run-records.js';
import { axeViolations } from './support/axe-violations.js';
import { childrenOf } from './support/killed-run.js';
import { EVIL, madeRun } from './support/made-run.js';

const { path: chromium, reason } = await chromiumPath();
const isLong = process.env.SHARDWEAVE_LONG === '1';
const LIMIT_MS = 120_000;
const TOKEN = 'a-token-that-the-test-has-made';

describe.skipIf(chromium === undefined)(
  `the page in headless Chromium${reason && ` (${reason})`}`,
  { timeout: LIMIT_MS },
  () => {
    let browser: Browser;
    let page: Page;
    /** What the page printed or threw, and what it requested from other addresses than its own. */
    const problems: string[] = [];
    const asked: string[] = [];

    beforeAll(async () => {
      browser = await launchChromium(chromium!);
      page = await newPage(browser);
      page.on('pageerror', (error) => problems.push(error.message));
      page.on('console', (message) => problems.push(message.text()));
      page.on('request', (request) => asked.push(request.url()));
    }, LIMIT_MS);
    afterAll(() => browser?.close());
    afterEach(() => {
      expect(problems).toEqual([]);
    });

    /**
     * Returns the cells of a card's table, beginning with the newest row. Numbers are the exact
     * ones, not the formatted ones.
     */
    async function rowsOf(id: string): Promise<(number | string)[][]> {
      await page.locator(`#${id} details`).evaluate((details) => {
        (details as HTMLDetailsElement).open = true;
      });
      await page.locator(`#${id} details tbody tr`).first().waitFor();
      return page.locator(`#${id} details tbody tr`).evaluateAll((rows) =>
        rows.map((row) =>
          [...row.children].map((cell) => {
            const value = cell.querySelector('data')?.getAttribute('value');
            return value == null ? cell.textContent! : Number(value);
          }),
        ),
      );
    }

    const readout = (id: string) => page.locator(`#${id} .readout`).textContent();
    const shownValue = async (id: string, name: string) => {
      const entry = page.locator(`#${id} .legend button`, { hasText: name });
      return Number(await entry.locator('data').getAttribute('value'));
    };

    describe('of a command', () => {
      let command: ChildProcess;
      let out: string;
      let address: string;

      beforeAll(async () => {
        const { buildCommand } = await import('./support/build-command.js');
        const script = await buildCommand();
        out = join(newFolder(), 'run');
        const text = new URL('../../../tooling/reference/data/tiny/text.txt', import.meta.url);
        const flags =
          '--device cpu --threads 1 --transport ws --ranks 2 --model nano --seq 16 --batch 4 --steps 100000 --schedule constant --valid-fraction 0.1 --eval-every 4 --dashboard 0';
        command = spawn(
          process.execPath,
          [script, 'train', ...flags.split(' '), '--data', text.pathname, '--out', out],
          { stdio: ['ignore', 'pipe', 'ignore'] },
        );
        let said = '';
        address = await new Promise<string>((resolve, reject) => {
          command.stdout!.on('data', (piece: Buffer) => {
            said += piece.toString();
            const [found] = /http:\S+(?=\n)/.exec(said) ?? [];
            if (found !== undefined) {
              resolve(found);
            }
          });
          command.on('exit', () => reject(new Error(`the command has ended: ${said}`)));
        });
      }, LIMIT_MS);
      afterAll(() => {
        command?.kill('SIGKILL');
      });

      it('shows what the file of metrics holds, goes on, loses nothing in a reload, and names a killed rank', async () => {
        const linesSoFar = () =>
          readFileSync(join(out, 'metrics.jsonl'), 'utf8')
            .split('\n')
            .slice(0, -1)
            .map((line) => JSON.parse(line) as StepLine);
        const seen = (least: number) =>
          expect
            .poll(
              async () =>
                Number(/step (\d+) of/.exec((await page.locator('#top').textContent())!)?.[1] ?? 0),
              { timeout: LIMIT_MS, interval: 50 },
            )
            .toBeGreaterThanOrEqual(least);
        await page.goto(address);
        await seen(6);
        const before = linesSoFar().length;
        await seen(before + 2);
        await page.reload();
        await seen(before + 4);

        const closed = once(command, 'close');
        process.kill(childrenOf(command.pid!)[1]!, 'SIGKILL');
        await page.locator('#ranks .badge.killed').waitFor();
        const states = page.locator('#ranks tbody tr');
        expect(await states.nth(1).textContent()).toMatch(/^1killed SIGKILL/);
        expect(await states.nth(0).textContent()).toMatch(/^0(stopped|training)/);
        await page.locator('.title .badge.failed').waitFor();
        expect(await page.locator('.reason').textContent()).toMatch(
          /^rank 1 of 2 was killed by SIGKILL after step \d+/,
        );
        await closed;

        // The page shows all losses from before and after the reload, to the last digit.
        const lines = linesSoFar();
        const shown = await rowsOf('loss');
        const expected = lines
          .slice(-shown.length)
          .reverse()
          .map(({ step, loss, validLoss }) => [String(step), loss, validLoss ?? '\u2013']);
        expect(shown).toEqual(expected);
        const ofWire = await rowsOf('wire');
        expect(ofWire.map(([, sent]) => sent)).toEqual(
          lines
            .slice(-ofWire.length)
            .reverse()
            .map(({ wireBytes }) => wireBytes),
        );
        // The oldest rows are on the last page of the table.
        const older = page.locator('#loss button', { hasText: 'Older' });
        while ((await older.count()) > 0 && (await older.isEnabled())) {
          await older.click();
        }
        const oldest = (await rowsOf('loss')).at(-1)!;
        expect(oldest.slice(0, 2)).toEqual(['1', lines[0]!.loss]);
        expect(problems.splice(0)).toEqual([]);

        // The file that the command left says the same.
        await page.goto(pathToFileURL(join(out, 'report.html')).href);
        expect(await page.title()).toMatch(new RegExp(`^${basename(out)}, .* - shardweave$`));
        expect(await rowsOf('loss')).toEqual(expected);
        expect(await page.locator('#ranks .badge.killed').count()).toBe(1);
      });
    });

    describe('of reports', () => {
      let folder: string;
      let file: string;
      let both: string;

      beforeAll(async () => {
        folder = mkdtempSync(join(tmpdir(), `page-<b>`));
        const runs = ['first', 'second'].map((name, i) => {
          const path = join(folder, name);
          const directory = new RunDirectory(path);
          for (const record of madeRun(i)) {
            directory.add(record);
          }
          directory.close();
          return path;
        });
        file = join(folder, 'one.html');
        both = join(folder, 'both.html');
        writeFileSync(file, await reportOf(runs.slice(0, 1)));
        writeFileSync(both, await reportOf(runs));
      });

      it('asks nobody for anything, and takes no text for markup', async () => {
        asked.length = 0;
        await page.goto(pathToFileURL(file).href);
        await page.locator('#samples').waitFor();
        expect(asked).toEqual([pathToFileURL(file).href]);
        expect(await page.evaluate(() => 'isTaken' in window)).toBe(false);
        expect(await page.locator('img').count()).toBe(0);
        for (const id of ['classes', 'samples', 'saves', 'warnings', 'settings', 'ranks']) {
          expect(await page.locator(`#${id}`).textContent()).toContain(EVIL);
        }
        expect(await page.locator('h1').textContent()).toBe(`run ${EVIL}`);
        expect((await rowsOf('figures'))[0]).toEqual(['120', 0.6, 0.3]);
        const rows = await page
          .locator('#classes tbody tr')
          .evaluateAll((all) =>
            all.map((row) => [...row.children].map(({ textContent }) => textContent)),
          );
        expect(rows).toEqual([
          [EVIL, '0.5000', '0.2500', '0.3333', '4'],
          ['fog', '1.0000', '1.0000', '1.0000', '3'],
          [EVIL, '1', '3'],
          ['fog', '0', '3'],
        ]);
        expect((await rowsOf('memory'))[1]).toEqual([
          ...['rank 0', 'backward', 2000, 4000, 2000, 0, 6000, 0, 14_000],
        ]);
      });

      // In the short run dashboard-index.test.ts has light, and wide.
      it.each([
        ['dark', 390, 'one.html'],
        ...(isLong ? ([['light', 1440, 'both.html']] as const) : []),
      ] as const)('breaks no rule of axe in %s, %d px wide', async (colorScheme, width, name) => {
        await page.emulateMedia({ colorScheme });
        await page.setViewportSize({ width, height: 800 });
        await page.goto(pathToFileURL(join(folder, name)).href);
        await rowsOf('loss');
        await rowsOf('memory');
        expect(await axeViolations(page)).toEqual([]);
        await page.setViewportSize({ width: 1280, height: 800 });
      });

      it('lays runs over each other, any of which can be left out', async () => {
        await page.goto(pathToFileURL(both).href);
        const [newest] = await rowsOf('loss');
        expect(newest).toEqual(['120', 4 - 1.2, 4 - 1.2, 5 - 1.2, 4 - 1.2]);
        await page.getByRole('checkbox', { name: 'first' }).uncheck();
        expect((await rowsOf('loss'))[0]).toEqual(['120', 5 - 1.2, 4 - 1.2]);
      });

      it('fits a narrow screen, where small lines come first', async () => {
        await page.setViewportSize({ width: 360, height: 740 });
        await page.goto(pathToFileURL(both).href);
        await rowsOf('loss');
        expect((await page.locator('.sparks').boundingBox())!.y).toBeLessThan(40);
        expect(await page.locator('.sparks button').allTextContents()).toEqual([
          'Loss',
          'Validation',
          'Rate',
          'Tokens/s',
        ]);
        expect(await page.locator('.sparks polyline').count()).toBe(8);
        const [inner, content] = await page.evaluate(() => [
          document.documentElement.clientWidth,
          document.documentElement.scrollWidth,
        ]);
        expect(content).toBe(inner);
        await page.setViewportSize({ width: 1280, height: 800 });
      });

      it('is reached by keyboard, and a plot is read by it', async () => {
        await page.goto(pathToFileURL(file).href);
        const reached = new Set<string>();
        for (let i = 0; i < 200; i++) {
          await page.keyboard.press('Tab');
          const name = await page.evaluate(() => {
            const { activeElement: at } = document;
            const card = at?.closest('.card')?.id ?? '';
            return at === document.body ? '' : `${card} ${at?.className || at?.tagName}`.trim();
          });
          if (name === '') {
            break;
          }
          reached.add(name);
        }
        const cards = ['loss', 'norm', 'rate', 'speed', 'communication', 'wire'];
        expect([...reached]).toEqual(
          expect.arrayContaining([
            ...['SELECT', 'INPUT'],
            ...cards.flatMap((id) => [`${id} plot`, `${id} SUMMARY`, `${id} BUTTON`]),
            ...['ranks scroll', 'memory SUMMARY', 'saves scroll'],
          ]),
        );

        const readout = page.locator('#loss .readout');
        await page.locator('#loss .plot').focus();
        await page.keyboard.press('Home');
        expect(await readout.textContent()).toBe('step 1');
        await page.keyboard.press('ArrowRight');
        expect(await readout.textContent()).toBe('step 2');
        const value = page.locator('#loss .legend data').first();
        expect(Number(await value.getAttribute('value'))).toBe(4 - 2 / 100);
        await page.keyboard.press('+');
        await page.keyboard.press('End');
        expect(await readout.textContent()).toBe('step 120');
        await page.locator('#loss summary').focus();
        await page.keyboard.press('Enter');
        await page.locator('#loss details tbody tr').first().waitFor();
        await page.locator('#loss button', { hasText: 'Older' }).focus();
        await page.keyboard.press('Enter');
        expect((await rowsOf('loss'))[0]![0]).toBe('70');
        expect(await page.evaluate(() => document.activeElement?.textContent)).toBe('Older');
      });

      it('takes noise away by a slider, says so, and leaves the table as it is', async () => {
        await page.goto(pathToFileURL(file).href);
        const before = await rowsOf('loss');
        expect(await readout('loss')).toBe('');
        await page.getByRole('slider').fill('4');
        expect(await readout('loss')).toBe('mean over 20 steps');
        expect(await shownValue('loss', 'training')).toBeGreaterThan(before[0]![1] as number);
        expect(await rowsOf('loss')).toEqual(before);
      });

      it('runs over tokens or time, hides a series by its legend, and says what a range leaves out', async () => {
        await page.goto(pathToFileURL(file).href);
        await page.getByRole('combobox').selectOption('tokens');
        await page.locator('#loss .plot').press('End');
        expect(await readout('loss')).toBe('7.7k tokens');
        await page.getByRole('combobox').selectOption('time');
        await page.locator('#loss .plot').press('End');
        expect(await readout('loss')).toBe('6 s');

        const training = page.locator('#loss .legend button', { hasText: 'training' });
        await training.click();
        expect(await training.getAttribute('aria-pressed')).toBe('false');
        expect(await page.evaluate(() => document.activeElement?.textContent)).toMatch(/training/);

        const outside = page.locator('#norm .outside');
        expect(await outside.textContent()).toBe('3 values outside');
        await page.locator('#norm .plot').press('a');
        expect(await outside.isHidden()).toBe(true);
        const all = page.locator('#norm button', { hasText: 'All values' });
        expect(await all.getAttribute('aria-pressed')).toBe('true');
        await page.locator('#norm button', { hasText: 'Log' }).click();
        expect(await outside.isHidden()).toBe(true);
      });

      it('opens a plot to full size, from which Esc leads back to where it was opened', async () => {
        await page.goto(pathToFileURL(file).href);
        const plot = page.locator('#wire .plot');
        await plot.press('f');
        const dialog = page.locator('dialog[open]');
        const box = (await dialog.locator('.plot').boundingBox())!;
        expect(box.height).toBeGreaterThan(500);
        expect(await axeViolations(page)).toEqual([]);
        await page.keyboard.press('Escape');
        await dialog.waitFor({ state: 'detached' });
        expect(await plot.evaluate((host) => document.activeElement === host)).toBe(true);
        const open = page.locator('#wire button', { hasText: 'Full size' });
        await open.click();
        await dialog.locator('button', { hasText: 'Close' }).click();
        await dialog.waitFor({ state: 'detached' });
        expect(await open.evaluate((button) => document.activeElement === button)).toBe(true);
      });

      it('gives the numbers of a plot as CSV and itself as PNG', async () => {
        await page.goto(pathToFileURL(file).href);
        const saved = async (name: string) => {
          const coming = page.waitForEvent('download');
          await page.locator('#loss button', { hasText: name }).click();
          const got = await coming;
          return { name: got.suggestedFilename(), bytes: readFileSync(await got.path()) };
        };
        const csv = await saved('CSV');
        expect(csv.name).toBe('first-loss.csv');
        const lines = csv.bytes.toString().split('\r\n');
        expect(lines.slice(0, 2)).toEqual(['step,training,validation', `1,${4 - 1 / 100},`]);
        expect(lines[120]).toBe(`120,${4 - 1.2},${4 - 1.2}`);
        const png = await saved('PNG');
        expect(png.name).toBe('first-loss.png');
        expect(png.bytes.subarray(1, 4).toString()).toBe('PNG');
        expect(png.bytes.byteLength).toBeGreaterThan(5000);
      });

      it('says what the run has worked through, and shows only the saves that are there', async () => {
        await page.goto(pathToFileURL(file).href);
        const tiles = (await page.locator('.tiles > div').allTextContents()).join('|');
        expect(tiles).toContain('Tokens seen7.7k|Epoch2.40|FLOP/s900 G|Of the peak25.0 %');
        expect(tiles).toContain('In evaluation180 ms');
        expect(await page.locator('#saves tbody tr').count()).toBe(1);
        const samples = page.locator('#samples figcaption');
        expect(await samples.allTextContents()).toEqual(['after step 120', 'after step 60']);
        expect((await rowsOf('group-norms'))[0]).toEqual(['120', 0.5, 0.25]);
        const cut = await page
          .locator('.tiles dd')
          .evaluateAll((all) =>
            all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent),
          );
        expect(cut).toEqual([]);
      });

      it('compares runs in a table that is sorted by what is asked', async () => {
        await page.goto(pathToFileURL(both).href);
        const names = () => page.locator('.compare tbody th').allTextContents();
        const heads = await page.locator('.compare thead th').allTextContents();
        expect(heads).toEqual(expect.arrayContaining(['Loss', 'Validation', 'optim']));
        expect(heads).not.toContain('model');
        const loss = page.locator('.compare thead th', { hasText: 'Loss' });
        await loss.locator('button').click();
        expect(await names()).toEqual(['first', 'second']);
        await loss.locator('button').click();
        expect(await loss.getAttribute('aria-sort')).toBe('descending');
        expect(await names()).toEqual(['second', 'first']);
      });
    });

    describe('of another site', () => {
      it('gets nothing of the run, with the token or without it', async () => {
        const history = new RunHistory();
        history.add({ type: 'warning', text: 'the secret of the run' });
        const env = { [TOKEN_VARIABLE]: TOKEN };
        const dashboard = await Dashboard.open({ port: 0, history, env });
        const site = createServer((_, response) => {
          response.setHeader('Content-Type', 'text/html');
          response.end('<!doctype html><title>another site</title><link rel="icon" href="data:,">');
        });
        await once(site.listen(0, '127.0.0.1'), 'listening');
        const { port } = site.address() as AddressInfo;
        const { origin } = new URL(dashboard.url);
        await page.goto(`http://127.0.0.1:${port}/`);
        const answers = await page.evaluate(
          async ([target, token]) => {
            const tries = [
              fetch(`${target}/events`),
              fetch(`${target}/events`, { mode: 'no-cors' }),
              fetch(`${target}/metrics`, { headers: { Authorization: `Bearer ${token}` } }),
            ];
            const texts = tries.map((each) => each.then((answer) => answer.text()));
            const settled = await Promise.allSettled(texts);
            return settled.map((each) => (each.status === 'fulfilled' ? each.value : 'refused'));
          },
          [origin, TOKEN] as const,
        );
        expect(answers).toEqual(['refused', 'refused', 'refused']);
        problems.length = 0; // The browser reports the refusal there.
        await page.goto(`${origin}/`);
        await page.locator('.message', { hasText: 'does not know this page' }).waitFor();
        expect(await page.content()).not.toContain('the secret of the run');
        problems.length = 0;
        await page.goto(dashboard.url); // A change of its fragment makes the page reload itself.
        await page.locator('#warnings', { hasText: 'the secret of the run' }).waitFor();
        await page.goto('about:blank');
        await dashboard.close();
        site.close();
      });
    });
  },
);
