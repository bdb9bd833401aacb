import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect, it } from 'vitest';
import { chromiumPath, launchChromium } from '../../../tooling/browser/launch-chromium.js';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { Dashboard } from '../src/dashboard/dashboard.js';
import { RunsDashboard } from '../src/dashboard/runs-dashboard.js';
import { reportOf } from '../src/output/report.js';
import { RunDirectory } from '../src/output/run-directory.js';
import { RunHistory } from '../src/output/run-history.js';
import type { EventRecord, RunRecord, StepLine } from '../src/output/run-records.js';
import { addLines, makeRun } from './support/made-runs.js';

const OUT = process.env.SHOTS_OUT ?? '/work/notes/shots7';
const ONLY = new RegExp(process.env.SHOTS ?? '.');
const WIDTHS = (process.env.SHOTS_W ?? '390,1440,2560').split(',').map(Number);
const SCHEMES = (process.env.SHOTS_S ?? 'light,dark').split(',') as ('light' | 'dark')[];
const FULL = process.env.SHOTS_FULL !== '0';

function rng(seed: number) {
  let a = (seed * 2654435761) >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = a;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}
export interface Opt {
  steps: number;
  planned: number;
  lr: number;
  seed: number;
  end?: 'done' | 'failed' | 'stopped';
  reason?: string;
  diverge?: number;
  ranks?: number;
  begin: number;
  title?: string;
  stepMs?: number;
}
export function lineOf(o: Opt) {
  const r = rng(o.seed);
  const g = () => Math.sqrt(-2 * Math.log(r() + 1e-12)) * Math.cos(6.283185 * r());
  let at = o.begin;
  return (n: number): StepLine => {
    const warm = Math.min(1, n / (o.planned * 0.05));
    const lr = o.lr * warm * (0.1 + 0.9 * 0.5 * (1 + Math.cos((Math.PI * n) / o.planned)));
    const bad =
      o.diverge !== undefined && n > o.diverge - 30 ? Math.exp((n - o.diverge + 30) / 9) * 0.4 : 0;
    const base =
      2.2 +
      8.6 * Math.exp(-n / ((o.planned * 0.04) / (o.lr / 6e-4) ** 0.5)) +
      1.2 * Math.exp(-n / (o.planned * 0.4));
    const loss = base + 0.09 * g() + bad + (n % 1733 === 800 ? 2 : 0);
    const ev = n % Math.max(10, Math.round(o.planned / 40)) === 0;
    const sv = n % Math.max(20, Math.round(o.planned / 8)) === 0;
    const stepMs = (o.stepMs ?? 412) * (1 + 0.03 * g() + (n % 97 === 0 ? 0.4 : 0));
    at += stepMs + (ev ? 3100 : 0);
    const wire = 38.4 * 2 ** 20;
    return {
      step: n,
      loss: o.diverge === n ? null : loss,
      targets: 16384,
      gradNorm:
        o.diverge === n
          ? null
          : Math.abs(
              0.6 +
                3 * Math.exp(-n / (o.planned * 0.03)) +
                0.1 * g() +
                bad +
                (n % 613 === 300 ? 40 : 0),
            ),
      lr,
      lossScale: 1,
      skipped: false,
      stepMs,
      tokensPerSecond: (16384 / stepMs) * 1000,
      peakBytes: 412 * 2 ** 20,
      wireBytes: wire,
      collectiveMs: 80 + 6 * g(),
      exposedMs: Math.max(1, 18 + 5 * g()),
      tokens: 16384 * n,
      epoch: (16384 * n) / 3.1e7,
      ...(ev && { validLoss: base + 0.06 + 0.01 * g(), evalMs: 3100 + 90 * g() }),
      ...(sv && { saveWaitMs: 240 + 40 * r() }),
      atMs: at,
    } as StepLine;
  };
}
const bytes = (p: number, act: number, gath: number) => {
  const b = {
    parameter: p,
    optimizer: 2 * p,
    gradient: p * 0.9,
    gathered: gath,
    activation: act,
    staging: p * 0.1,
  };
  return { ...b, total: Object.values(b).reduce((x, y) => x + y, 0) };
};
const MB = 2 ** 20;
export function recordsOf(o: Opt): {
  lines: StepLine[];
  events: EventRecord[];
  tail: EventRecord[];
} {
  const f = lineOf(o);
  const lines = Array.from({ length: o.steps }, (_, i) => f(i + 1));
  const ranks = o.ranks ?? 2;
  const last = lines.at(-1)?.atMs ?? o.begin;
  const events: EventRecord[] = [
    {
      type: 'run',
      title: o.title ?? 'gpt2-small on stories, full-shard over 2 ranks',
      steps: o.planned,
      ranks,
      atMs: o.begin,
    },
    {
      type: 'header',
      rows: [
        ['model', 'gpt2-small, 124M parameters, seq 1024'],
        ['optim', `AdamW lr ${o.lr}, cosine, warmup ${o.planned / 20}, clip 1`],
        ['data', 'stories.txt, 31.0M tokens; 2.0 % held out'],
        ['mesh', `full-shard over ${ranks} ranks, bf16 parameters`],
        ['seed', String(o.seed)],
      ],
    } as EventRecord,
    ...Array.from(
      { length: ranks },
      (_, n) =>
        ({
          type: 'ready',
          rank: n,
          device: 'webgpu',
          description: 'NVIDIA H200, Vulkan',
          isSoftware: false,
          host: 'node-1',
          numericClass: '',
          shardBytes: 62 * MB,
        }) as EventRecord,
    ),
    { type: 'compute', flopsPerToken: 7.6e8, peakFlops: 6.7e13 } as EventRecord,
  ];
  const tail: EventRecord[] = [
    ...Array.from(
      { length: ranks },
      (_, n) =>
        ({
          type: 'rank',
          rank: n,
          step: 2 ** Math.floor(Math.log2(o.steps)),
          bytesSent: 38.4 * MB,
          bytesReceived: 38.4 * MB,
          collectiveMs: 80.4,
          exposedMs: 18.2,
          atMs: last,
          phases: [
            { phase: 'forward', bytes: bytes(62 * MB, 96 * MB, 28 * MB) },
            { phase: 'backward', bytes: bytes(62 * MB, 130 * MB, 28 * MB) },
            { phase: 'optimizer', bytes: bytes(62 * MB, 2 * MB, 0) },
          ],
        }) as EventRecord,
    ),
    ...[0.25, 0.5, 1].map(
      (s) =>
        ({
          type: 'sample',
          step: Math.round(o.steps * s),
          prompt: 'Once upon a time',
          text: ' there was a small fox who lived at the edge of a wood, and every morning she went down to the river to see whether the ice had gone. One day she met an old heron there.',
        }) as EventRecord,
    ),
    ...[0.5, 1].map(
      (s) =>
        ({
          type: 'save',
          step: Math.round(o.steps * s),
          directory: `out/run/step-${Math.round(o.steps * s)}`,
          bytes: 1.4e9,
          ms: 2100,
          waitMs: 240,
          atMs: last,
        }) as EventRecord,
    ),
    ...(o.reason
      ? [{ type: 'warning', text: 'The loss scale was halved 3 times in a row.' } as EventRecord]
      : []),
    ...(o.end
      ? [
          ...Array.from(
            { length: ranks },
            (_, n) =>
              ({
                type: 'rankEnd',
                rank: n,
                end: o.end,
                ...(o.reason && n === 1 ? { reason: o.reason } : {}),
                atMs: last,
              }) as EventRecord,
          ),
          {
            type: 'runEnd',
            end: o.end,
            ...(o.reason ? { reason: o.reason } : {}),
            atMs: last,
          } as EventRecord,
        ]
      : []),
  ];
  return { lines, events, tail };
}
function write(dir: string, o: Opt) {
  const d = new RunDirectory(dir);
  const { lines, events, tail } = recordsOf(o);
  for (const e of events) d.add(e);
  for (const l of lines) d.add({ type: 'step', ...l });
  for (const e of tail) d.add(e);
  d.close();
  return dir;
}
it('shots', async () => {
  const { path } = await chromiumPath();
  const browser = await launchChromium(path!);
  const folder = newFolder();
  const now = Date.now();
  const states: Record<
    string,
    () => Promise<{
      url: string;
      close?: () => Promise<void>;
      ready: string;
      act?: (p: any) => Promise<void>;
    }>
  > = {
    live: async () => {
      const history = new RunHistory();
      const { lines, events, tail } = recordsOf({
        steps: 1240,
        planned: 4000,
        lr: 6e-4,
        seed: 1,
        begin: now - 1240 * 420,
      });
      for (const e of events) history.add(e);
      for (const l of lines) history.add({ type: 'step', ...l });
      for (const e of tail) history.add(e);
      const d = await Dashboard.open({ port: 0, history, env: {} });
      return { url: d.url, close: () => d.close(), ready: '#loss canvas' };
    },
    fresh: async () => {
      const history = new RunHistory();
      const { events } = recordsOf({
        steps: 0,
        planned: 4000,
        lr: 6e-4,
        seed: 1,
        begin: now - 4000,
      });
      for (const e of events) history.add(e);
      const d = await Dashboard.open({ port: 0, history, env: {} });
      return { url: d.url, close: () => d.close(), ready: '#ranks' };
    },
    finished: async () =>
      file('finished', [
        [
          'stories-6e-4',
          { steps: 4000, planned: 4000, lr: 6e-4, seed: 2, end: 'done', begin: now - 9e6 },
        ],
      ]),
    short: async () =>
      file('short', [
        ['short', { steps: 60, planned: 60, lr: 6e-4, seed: 2, end: 'done', begin: now - 9e6 }],
      ]),
    killed: async () =>
      file('killed', [
        ['stories-6e-4', { steps: 900, planned: 4000, lr: 6e-4, seed: 3, begin: now - 3.6e6 }],
      ]),
    diverged: async () =>
      file('diverged', [
        [
          'stories-6e-3',
          {
            steps: 700,
            planned: 4000,
            lr: 6e-3,
            seed: 4,
            end: 'failed',
            reason: 'the loss was not finite at step 700: rank 1/2. Lower --lr, or raise --warmup.',
            diverge: 700,
            begin: now - 3.6e6,
          },
        ],
      ]),
    two: async () =>
      file('two', [
        [
          'stories-6e-4',
          { steps: 4000, planned: 4000, lr: 6e-4, seed: 2, end: 'done', begin: now - 9e6 },
        ],
        [
          'stories-3e-4',
          { steps: 3000, planned: 4000, lr: 3e-4, seed: 3, end: 'stopped', begin: now - 9e6 },
        ],
      ]),
    twelve: async () =>
      file(
        'twelve',
        Array.from({ length: 12 }, (_, i) => [
          `sweep-lr-${(1 + i) * 1e-4}`.slice(0, 16),
          {
            steps: 1000,
            planned: 1000,
            lr: (1 + i) * 1e-4,
            seed: i + 5,
            end: 'done',
            begin: now - 9e6,
            stepMs: 300 + 20 * i,
          } as Opt,
        ]),
      ),
    tenk: async () =>
      file('tenk', [
        [
          'long',
          {
            steps: 10000,
            planned: 10000,
            lr: 6e-4,
            seed: 2,
            end: 'done',
            begin: now - 9e6,
            ranks: 8,
          },
        ],
      ]),
    fullsize: async () => ({
      ...(await file('fullsize', [
        [
          'stories-6e-4',
          { steps: 4000, planned: 4000, lr: 6e-4, seed: 2, end: 'done', begin: now - 9e6 },
        ],
      ])),
      act: async (p: any) => {
        await p.locator('#loss .plot').press('f');
        await p.locator('dialog .plot').press('ArrowLeft');
      },
    }),
    index: async () => index(6, []),
    index12: async () => index(14, 12),
  };
  async function index(n: number, chosen: any) {
    const dir = join(folder, `index${n}`);
    for (let i = 0; i < n; i++) {
      const end = (['done', 'done', undefined, 'stopped', 'failed', 'done'] as const)[i % 6];
      const o: Opt = {
        steps: 400 + 100 * (i % 6),
        planned: 1000,
        lr: (1 + i) * 1e-4,
        seed: i + 1,
        begin: now - 1e6 * (i + 1),
      };
      const { lines, events, tail } = recordsOf(o);
      const run = join(dir, `sweep/lr-${String(i + 1).padStart(2, '0')}e-4`);
      makeRun(run, {
        steps: 0,
        config: {
          steps: 1000,
          lr: o.lr,
          model: i % 2 ? 'gpt2-small' : 'nano',
          strategy: 'full-shard',
          seed: 1 + (i % 3),
        },
        events: [...events.slice(1), ...tail],
        ...(end && { end }),
      });
      addLines(run, 'metrics.jsonl', lines);
    }
    const d = await RunsDashboard.open(dir, { port: 0, env: {} });
    return {
      url: d.url,
      close: () => d.close(),
      ready: 'table.runs tbody tr',
      act: async (p: any) => {
        const boxes = p.locator('table.runs input[type=checkbox]:not(:checked)');
        const k = Array.isArray(chosen) ? 2 : chosen;
        for (let i = 0; i < k; i++) {
          await boxes.first().check();
        }
        await p.locator('#loss canvas').waitFor();
        await p.waitForTimeout(600);
      },
    };
  }
  async function file(name: string, runs: [string, Opt][]) {
    const dirs = runs.map(([n, o]) => write(join(folder, name, n), o));
    const html = join(folder, `${name}.html`);
    writeFileSync(html, await reportOf(dirs));
    return { url: pathToFileURL(html).href, ready: '#loss canvas' };
  }
  for (const [name, make] of Object.entries(states)) {
    if (!ONLY.test(name)) continue;
    const { url, close, ready, act } = await make();
    for (const width of WIDTHS)
      for (const colorScheme of SCHEMES) {
        const page = await browser.newPage({
          viewport: { width, height: Number(process.env.SHOTS_H ?? (width === 390 ? 844 : 900)) },
          colorScheme,
        });
        page.on('pageerror', (e: Error) => console.info(name, 'ERR', e.message));
        await page.goto(url);
        await page.locator(ready).first().waitFor();
        await page.waitForTimeout(200);
        await act?.(page);
        const over = await page.evaluate(() => {
          const w = document.documentElement.clientWidth;
          const bad: string[] = [];
          if (document.documentElement.scrollWidth > w)
            for (const e of document.querySelectorAll('body *')) {
              const r = e.getBoundingClientRect();
              if (r.right > w + 1 && !e.closest('.scroll'))
                bad.push(
                  `${e.tagName}.${(e as any).className?.baseVal ?? e.className}#${e.id} ${Math.round(r.right)}`,
                );
            }
          return [document.documentElement.scrollWidth, ...bad.slice(0, 12)];
        });
        const cut = await page.evaluate(() =>
          [
            ...document.querySelectorAll(
              '.tiles dd, .tiles dt, h2, .legend .name, .legend .value, .tools button, .badge, .compare thead button',
            ),
          ]
            .filter(
              (e) =>
                (e as HTMLElement).scrollWidth > (e as HTMLElement).clientWidth + 1 &&
                getComputedStyle(e).display !== 'inline',
            )
            .map((e) => `${e.className} ${e.textContent}`)
            .slice(0, 8),
        );
        process.stdout.write(
          `${name} ${width} ${colorScheme} ${JSON.stringify(over)} cut ${JSON.stringify(cut)}\n`,
        );
        await page.screenshot({
          path: join(OUT, `${name}-${width}-${colorScheme}.png`),
          fullPage: FULL && name !== 'fullsize',
          animations: 'disabled',
        });
        await page.close();
      }
    await close?.();
  }
  await browser.close();
}, 600_000);
