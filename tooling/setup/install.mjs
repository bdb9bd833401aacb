// Step `install` installs the workspace's dependencies by the pnpm that package.json pins. npm,
// which comes with Node, starts that pnpm.
import { spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { hashFiles, packageFolders } from './hash-files.mjs';
import { ROOT } from './root.mjs';
import { SetupError } from './setup-error.mjs';
import { step } from './step.mjs';

// Without a network a person waits for an error as long as npm pauses between attempts, which by
// default is 10 s and then 60 s.
const QUICK_RETRIES = {
  npm_config_fetch_retry_mintimeout: '1000',
  npm_config_fetch_retry_maxtimeout: '5000',
};
const QUIET_TURBO = { TURBO_TELEMETRY_DISABLED: '1', TURBO_NO_UPDATE_NOTIFIER: '1' };

const INPUTS = ['pnpm-lock.yaml', 'pnpm-workspace.yaml', 'package.json'];

export async function installDependencies() {
  const pnpm = pinnedPnpm();
  await step({
    name: 'install',
    says: `dependencies from the npm registry, with ${pnpm} and the frozen lock file`,
    key: hashFiles([...INPUTS, ...packageFolders().map((folder) => `${folder}/package.json`)]),
    isThere: () => existsSync(join(ROOT, 'node_modules/.modules.yaml')),
    // Without the last option pnpm asks before it replaces a node_modules that another machine
    // made.
    work: () =>
      runPnpm('install', ['install', '--frozen-lockfile', '--config.confirm-modules-purge=false']),
  });
}

/**
 * Installs the rivals that bench/ compares with. They are large, so they are not part of the
 * workspace.
 */
export async function installRivals() {
  await step({
    name: 'install-rivals',
    says: 'what bench/ measures against, from the npm registry, with its own lock file',
    key: hashFiles(['bench/package.json', 'bench/pnpm-lock.yaml']),
    isThere: () => existsSync(join(ROOT, 'bench/node_modules/.modules.yaml')),
    work: () =>
      runPnpm('install-rivals', [
        '-C',
        'bench',
        'install',
        '--ignore-workspace',
        '--frozen-lockfile',
      ]),
  });
}

/** Runs the pinned pnpm for a step. Resolves to its output, or throws a SetupError. */
export async function runPnpm(stepName, args) {
  return runNpm(stepName, ['exec', '--yes', '--package', pinnedPnpm(), '--', 'pnpm', ...args]);
}

/** Runs npm for a step, with the same results as `runPnpm`. */
export async function runNpm(stepName, args, cwd = ROOT) {
  const { file, before, shell } = npmCommand();
  const { code, output } = await capture(file, [...before, ...args], { cwd, shell });
  if (code !== 0) {
    throw new SetupError(stepName, explain(output, code));
  }
  return output;
}

function pinnedPnpm() {
  return JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')).packageManager;
}

/**
 * The npm that started this command, or else the one on the PATH, which Windows starts by a shell.
 */
function npmCommand() {
  const script = process.env.npm_execpath;
  if (script && /npm-cli\.js$/.test(script)) {
    return { file: process.execPath, before: [script], shell: false };
  }
  return { file: 'npm', before: [], shell: process.platform === 'win32' };
}

function capture(file, args, options) {
  const env = { ...QUICK_RETRIES, ...process.env, ...QUIET_TURBO };
  const child = spawn(file, args, { ...options, env, stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  child.stdout.on('data', (chunk) => (output += chunk));
  child.stderr.on('data', (chunk) => (output += chunk));
  return new Promise((resolve, reject) => {
    child.on('error', (error) =>
      error.code === 'ENOENT'
        ? resolve({ code: 127, output: `${file} was not found on the PATH: install npm` })
        : reject(error),
    );
    child.on('close', (code, signal) => resolve({ code: code ?? signal, output }));
  });
}

const NETWORK =
  /\b(ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENETUNREACH|EHOSTUNREACH|ETIMEDOUT|ERR_SOCKET_TIMEOUT|ERR_PNPM_META_FETCH_FAIL|ENOTCACHED)\b/;

function explain(output, code) {
  const network = NETWORK.exec(output);
  if (network) {
    return (
      `needs the npm registry, and it could not be reached (${network[1]}). ` +
      'Connect to the network, or name a mirror with `npm config set registry`, ' +
      'then run the same command again.'
    );
  }
  const tail = output.trimEnd().split('\n').slice(-30).join('\n');
  return `failed with ${code}. Its last lines:\n${tail}`;
}
