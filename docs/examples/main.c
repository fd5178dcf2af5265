/* Acts by an exported policy: cc -std=c99 main.c -lm -o main */

#include <stdio.h>

#include "policy.h"

int main(void)
{
    const float obs[DEEPROK_POLICY_INPUTS] = {0.0f, 0.0f, 0.05f, 0.0f}; /* what the sensors say */
    float values[DEEPROK_POLICY_OUTPUTS];
    const int action = deeprok_policy_act(obs);

    deeprok_policy_outputs(obs, values);
    printf("%s, of value %g\n", deeprok_policy_actions[action], (double)values[action]);
    return 0;
}
