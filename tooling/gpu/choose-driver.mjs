// Finds the Vulkan driver description (ICD file) with which Dawn has a hardware adapter on this
// machine. NVIDIA's drivers are in different places on hosts, in containers and on lent machines,
// and some containers have the library without its description.
import { spawnSync } from 'node:child_process';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const PROBE = fileURLToPath(new URL('../setup/webgpu-probe.mjs', import.meta.url));
const PROBE_TIMEOUT_MS = 60_000; // the first start of a driver on a cold machine takes seconds

const PLACES = [
  '/usr/share/vulkan/icd.d/nvidia_icd.json',
  '/etc/vulkan/icd.d/nvidia_icd.json',
  '/usr/local/nvidia/share/vulkan/icd.d/nvidia_icd.json',
];
/** Both libraries have NVIDIA's Vulkan entry points. The second one needs no X libraries. */
const LIBRARIES = ['libGLX_nvidia.so.0', 'libEGL_nvidia.so.0'];

/**
 * @param {string} folder where description files can be written
 * @returns {{environment: Record<string, string>, adapters: object[], tried: string[]}} the first
 *   hardware adapter; else the first software adapter; else none
 */
export function chooseDriver(folder) {
  const candidates = [{ name: "the machine's own setting", environment: {} }];
  for (const path of PLACES.filter((place) => existsSync(place))) {
    candidates.push({ name: path, environment: { VK_DRIVER_FILES: path } });
  }
  for (const library of LIBRARIES) {
    const path = join(folder, `${library}.json`);
    const ICD = { library_path: library, api_version: '1.3.0' };
    writeFileSync(path, JSON.stringify({ file_format_version: '1.0.0', ICD }));
    candidates.push({
      name: `${library} (described here)`,
      environment: { VK_DRIVER_FILES: path },
    });
  }
  const tried = [];
  let software;
  for (const { name, environment } of candidates) {
    const { adapters, says } = probe(environment);
    const hardware = adapters.filter(({ isSoftware }) => !isSoftware);
    tried.push(`${name}: ${adapters.map(({ description }) => description).join(', ') || says}`);
    if (hardware.length > 0) {
      return { environment, adapters: hardware, tried };
    }
    if (adapters.length > 0) {
      software ??= { environment, adapters };
    }
  }
  return { environment: {}, adapters: [], ...software, tried };
}

function probe(environment) {
  const result = spawnSync(process.execPath, [PROBE], {
    env: { ...process.env, ...environment },
    encoding: 'utf8',
    timeout: PROBE_TIMEOUT_MS,
  });
  const line = /^adapters (.*)$/m.exec(result.stdout ?? '');
  const says = (result.stderr ?? '')
    .split('\n')
    .find((text) => /fail|error|no drivers/i.test(text));
  return { adapters: line ? JSON.parse(line[1]) : [], says: says?.trim() ?? 'no adapter' };
}
