// What this tab remembers: the API key and the settings. Nothing outlives the tab.

const KEY = "pyvlm.key";
const SETTINGS = "pyvlm.settings";

// A browser may forbid storage; then the page forgets on reload, no more.
function attempt(action, otherwise) {
  try {
    return action() ?? otherwise;
  } catch {
    return otherwise;
  }
}

export const readKey = () => attempt(() => sessionStorage.getItem(KEY), "");
export const writeKey = (key) => attempt(() => sessionStorage.setItem(KEY, key));
export const forgetKey = () => attempt(() => sessionStorage.removeItem(KEY));

export const readSettings = () => attempt(() => JSON.parse(sessionStorage.getItem(SETTINGS)), {});
export const writeSettings = (settings) =>
  attempt(() => sessionStorage.setItem(SETTINGS, JSON.stringify(settings)));
