// Downloads a model of the Hub, in a process that a test can kill.

import { hubModel } from '../../src/hub/hub-model.js';
import { parseHubName } from '../../src/hub/hub-name.js';

await hubModel(parseHubName(process.argv[2]!)!, { pauseMs: 5 });
