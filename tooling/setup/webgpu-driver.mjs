// Step `webgpu` provides a WebGPU adapter for the tests, and the variables that it needs. It tries
// in this order: what the machine has; SwiftShader, if an earlier run unpacked it; Mesa's lavapipe
// by apt; SwiftShader from an npm package. The answer is kept until the machine's drivers change.
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir, userInfo } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { hashFiles } from './hash-files.mjs';
import { STATE } from './root.mjs';
import { SetupError } from './setup-error.mjs';
import { announce } from './step.mjs';
import { installSwiftShader, swiftShaderEnvironment } from './swiftshader.mjs';
import { installPackages, linuxRelease } from './system-packages.mjs';

const PROBE = fileURLToPath(new URL('webgpu-probe.mjs', import.meta.url));
const PROBE_TIMEOUT_MS = 60_000; // a cold software driver on a loaded machine took 4 s
const ANSWER = join(STATE, 'webgpu.json');

/** @returns {Promise<{environment: Record<string, string>}>} variables for the test process */
export async function webgpuDriver() {
  const base = runtimeDirectory();
  const known = readAnswer();
  if (known) {
    return { environment: { ...base, ...known } };
  }
  const environment = await findDriver(base);
  // The key is computed again, because apt may have added a driver.
  mkdirSync(STATE, { recursive: true });
  writeFileSync(ANSWER, JSON.stringify({ key: driversKey(), environment }));
  return { environment: { ...base, ...environment } };
}

/** The adapters that Dawn offers in a process with these variables; none where it crashes. */
export function probeAdapters(environment) {
  const result = spawnSync(process.execPath, [PROBE], {
    env: { ...process.env, ...environment },
    encoding: 'utf8',
    timeout: PROBE_TIMEOUT_MS,
  });
  const line = /^adapters (.*)$/m.exec(result.stdout ?? '');
  return { adapters: line ? JSON.parse(line[1]) : [], stderr: result.stderr ?? '' };
}

/**
 * XDG_RUNTIME_DIR, for drivers that warn without one. It is private to this user, in the folder for
 * temporary files.
 */
export function runtimeDirectory() {
  if (process.env.XDG_RUNTIME_DIR || process.platform !== 'linux') {
    return {};
  }
  const path = join(tmpdir(), `shardweave-runtime-${userInfo().uid}`);
  mkdirSync(path, { recursive: true, mode: 0o700 });
  const { uid, mode } = statSync(path);
  // Somebody else may have made the folder. Then the driver's warning is better than using theirs.
  return uid === process.getuid() && (mode & 0o077) === 0 ? { XDG_RUNTIME_DIR: path } : {};
}

async function findDriver(base) {
  const has = (environment) => probeAdapters({ ...base, ...environment }).adapters.length > 0;
  if (has({})) {
    return {};
  }
  const unpacked = swiftShaderEnvironment();
  if (unpacked && has(unpacked)) {
    return unpacked;
  }
  announce('webgpu', 'no adapter that Dawn accepts was found on this machine');
  const refusal = installLavapipe();
  if (!refusal && has({})) {
    return {};
  }
  announce('webgpu', `no Mesa driver by apt: ${refusal ?? 'Dawn refuses the one installed'}`);
  const swiftShader = await installSwiftShader();
  if (has(swiftShader)) {
    return swiftShader;
  }
  throw new SetupError(
    'webgpu',
    'the tests need a WebGPU adapter and none could be opened. `npm run doctor` says what is missing.',
  );
}

function installLavapipe() {
  const release = linuxRelease();
  // Dawn refuses the Mesa of Debian 12 itself (22.3), but that of its backports works.
  const suite =
    release?.id === 'debian' && release.version === '12' ? 'bookworm-backports' : undefined;
  const packages = ['mesa-vulkan-drivers', 'libvulkan1'];
  return installPackages({ step: 'webgpu', packages, ...(suite ? { suite } : {}) });
}

function readAnswer() {
  try {
    const { key, environment } = JSON.parse(readFileSync(ANSWER, 'utf8'));
    const isThere = !environment.VK_ICD_FILENAMES || swiftShaderEnvironment();
    return key === driversKey() && isThere ? environment : undefined;
  } catch {
    return undefined;
  }
}

/**
 * A key that changes whenever a driver, a GPU, the loader's environment or Dawn's version changes.
 */
function driversKey() {
  const folders = ['/usr/share/vulkan/icd.d', '/etc/vulkan/icd.d', '/dev/dri'];
  const names = folders.flatMap((folder) => list(folder).map((name) => `${folder}/${name}`));
  const nvidia = list('/dev').filter((name) => name.startsWith('nvidia'));
  const variables = ['VK_ICD_FILENAMES', 'VK_DRIVER_FILES', 'LD_LIBRARY_PATH'];
  const set = variables.map((name) => process.env[name] ?? '');
  return JSON.stringify([hashFiles(['pnpm-lock.yaml']), names, nvidia, set]);
}

function list(folder) {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}
