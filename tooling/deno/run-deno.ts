// Runs a program in Deno, whose WebGPU is another implementation than Node's: wgpu and naga instead
// of Dawn and Tint. The program is bundled as a page is, out of the packages' sources.

import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { bundlePage } from '../browser/bundle-page.ts';
import type { Answer, Order } from './program/program.ts';

export type { Answer };

const PROGRAM = fileURLToPath(new URL('program/program.ts', import.meta.url));
/** Mesa's compiler takes several times as long for the same kernels. */
const SWIFTSHADER = '/usr/lib/chromium/vk_swiftshader_icd.json';
const KEPT_STDERR = 4000;
let bundling: Promise<string | Uint8Array> | undefined;

export interface RunOptions {
  /** The limit for what never ends. The process is killed then. */
  readonly timeoutMs: number;
  /** The software driver: Chromium's by default, where it lies, or the one that Mesa has. */
  readonly driver?: 'swiftshader' | 'mesa';
}

/**
 * Runs an order and resolves to its answer.
 * @throws {Error} when Deno doesn't start, ends otherwise, or takes too long.
 */
export async function runDeno<O extends Order>(
  order: O,
  { timeoutMs, driver = 'swiftshader' }: RunOptions,
): Promise<Answer<O>> {
  const folder = mkdtempSync(join(tmpdir(), 'deno-'));
  const [script, input] = [join(folder, 'program.mjs'), join(folder, 'order.json')];
  bundling ??= bundleProgram();
  writeFileSync(script, await bundling);
  writeFileSync(input, JSON.stringify(order));
  const flags = ['--no-remote', '--no-config', '--unstable-webgpu', '--allow-read', '--allow-env'];
  const { code, stdout, stderr } = await runProcess(
    denoPath(),
    ['run', ...flags, script, input],
    { ...process.env, NO_COLOR: '1', DENO_NO_UPDATE_CHECK: '1', ...driverVariables(driver) },
    timeoutMs,
  );
  if (code !== 0) {
    throw new Error(
      `Deno, order ${order.kind}: expected to end with 0, ended with ${code}. Its last words:\n${stderr}`,
    );
  }
  return JSON.parse(stdout) as Answer<O>;
}

async function bundleProgram(): Promise<string | Uint8Array> {
  const files = await bundlePage({ program: PROGRAM }, { conditions: ['@shardweave/source'] });
  return files.get('/program.js')!;
}

/** The binary of the npm package `deno`, which comes as a package for each platform. */
function denoPath(): string {
  try {
    return createRequire(import.meta.url)('deno/install_api.cjs').runInstall();
  } catch (cause) {
    throw new Error(
      `Deno: expected the binary of the npm package deno for ${process.platform} ${process.arch}, found none: ${(cause as Error).message}. ` +
        'Run `npm test`, which installs it, or `npx pnpm install`.',
      { cause },
    );
  }
}

function driverVariables(driver: 'swiftshader' | 'mesa'): Record<string, string> {
  return driver === 'swiftshader' && existsSync(SWIFTSHADER)
    ? { VK_ICD_FILENAMES: SWIFTSHADER, VK_DRIVER_FILES: SWIFTSHADER }
    : {};
}

async function runProcess(
  file: string,
  args: readonly string[],
  env: NodeJS.ProcessEnv,
  timeoutMs: number,
): Promise<{ code: number | string; stdout: string; stderr: string }> {
  const child = spawn(file, args, { env, stdio: ['ignore', 'pipe', 'pipe'] });
  let [stdout, stderr] = ['', ''];
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    stdout += text;
  });
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr = (stderr + text).slice(-KEPT_STDERR);
  });
  let isLate = false;
  const timer = setTimeout(() => {
    isLate = true;
    child.kill('SIGKILL');
  }, timeoutMs);
  try {
    return await new Promise((resolve, reject) => {
      child.on('error', (error) =>
        reject(new Error(`Deno: ${file} does not start: ${error.message}`)),
      );
      child.on('close', (code, signal) => {
        const ending = isLate ? `${signal} after ${timeoutMs} ms` : (code ?? signal ?? 'nothing');
        resolve({ code: ending, stdout, stderr });
      });
    });
  } finally {
    clearTimeout(timer);
  }
}
